"""Passes: what leaves, when it comes back, which algorithm, how many sub-batches. Small examples, and what all keep."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainings import workload

from planc.errors import InternalError
from planc.micro_batch import Configuration
from planc.passes.base import (
    CONFIGURED,
    Decisions,
    Problem,
    apply_passes,
    gaps,
    memory_bytes,
    resident_bytes,
    workspace_bytes,
)
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces, fastest, smallest
from planc.passes.offload import OffloadOldest, OffloadWith, any_piece, convolution_input
from planc.passes.prefetch import AsEarlyAsFits, OneLayerAhead
from planc.passes.sub_batch import WINDOW_PERCENT, largest_sub_batch, window_bytes
from planc.pipeline import UNLIMITED
from planc.units import align_up


@cache
def problem(sub_batches: int = 1, model: str = "tiny_residual_cnn") -> Problem:
    return workload(model, batch=6).problem(sub_batches, UNLIMITED)


def decided(*passes: object, budget_bytes: int = UNLIMITED, model: str = "tiny_residual_cnn") -> Decisions:
    return apply_passes(within(budget_bytes, model), (ChooseEach(smallest), *passes))  # type: ignore[arg-type]


def within(budget_bytes: int, model: str = "tiny_residual_cnn") -> Problem:
    return replace(problem(1, model), budget_bytes=budget_bytes)


def peak(decisions: Decisions) -> int:
    return int(memory_bytes(problem(), decisions).max())


# The order of passes


def test_a_pass_that_comes_too_early_names_itself_and_what_ran() -> None:
    with pytest.raises(InternalError, match=r"FitWorkspaces requires .*configuration.*ran before it: none"):
        apply_passes(problem(), (FitWorkspaces(),))
    with pytest.raises(InternalError, match=r"OneLayerAhead requires .*ran before it: conv_algorithm\.fastest"):
        apply_passes(problem(), (ChooseEach(fastest), OneLayerAhead()))


# Gaps


def test_a_gap_lies_between_forward_and_backward() -> None:
    tasks = problem().tasks
    found = gaps(problem())
    assert len({piece.index for piece, _, _ in found}) == len(found) > 10
    for piece, before, behind in found:
        assert behind > before + 1
        assert tasks.launch(tasks.tasks[before]).phase == "forward"
        assert tasks.launch(tasks.tasks[behind]).phase == "backward"
        assert not any(before < use < behind for use in piece.uses)
        assert not piece.persistent


# Algorithms


def test_fastest_and_smallest() -> None:
    fast, small = (apply_passes(problem(), (ChooseEach(choose),)).configurations for choose in (fastest, smallest))
    options = problem().costs.configurations
    assert any(len(choice) > 1 for choice in options)
    for own, one, other in zip(options, fast, small, strict=True):
        if own:
            assert one is not None
            assert other is not None
            assert one.duration_ns == min(c.duration_ns for c in own)
            assert other.workspace_bytes == min(c.workspace_bytes for c in own)
        else:
            assert one is other is None


def test_a_workspace_is_chosen_against_what_is_live_at_its_step() -> None:
    """Field case D1: the same call gets its workspace where there is room, and another algorithm where there is not."""
    resident = resident_bytes(problem(), ())
    budget = int(resident.max()) + 256
    fast = apply_passes(problem(), (ChooseEach(fastest),))
    fitted = apply_passes(within(budget), (ChooseEach(fastest), FitWorkspaces()))
    assert int(memory_bytes(problem(), fitted).max()) <= budget < int(memory_bytes(problem(), fast).max())
    alignment = problem().profile.alignment
    changed = 0
    for task, (wanted, got) in enumerate(zip(fast.configurations, fitted.configurations, strict=True)):
        room = budget - int(resident[task])
        if wanted is None or got is None:
            assert wanted is got
        elif align_up(wanted.workspace_bytes, alignment) <= room:
            assert got == wanted
        else:
            changed += 1
            fitting = [
                c for c in problem().costs.configurations[task] if align_up(c.workspace_bytes, alignment) <= room
            ]
            assert got.duration_ns == min(c.duration_ns for c in fitting)
    assert changed


def test_where_nothing_fits_the_smallest_is_left_and_no_more_is_promised() -> None:
    fitted = apply_passes(within(1), (ChooseEach(fastest), FitWorkspaces()))
    assert fitted.configurations == apply_passes(problem(), (ChooseEach(smallest),)).configurations


# Offload


def test_vdnn_all_and_vdnn_conv() -> None:
    """Rhu et al.: every layer's input, or the inputs of convolutions."""
    tasks = problem().tasks
    everything, convolutions = (decided(OffloadWith(choose)).offloads for choose in (any_piece, convolution_input))
    assert {o.piece for o in everything} == {piece.index for piece, _, _ in gaps(problem())}
    assert {o.piece for o in convolutions} < {o.piece for o in everything}
    for offload in convolutions:
        readers = [tasks.launch(tasks.tasks[use]) for use in tasks.pieces[offload.piece].uses]
        assert any(launch.op == "Conv" for launch in readers)
    for offload in everything:
        piece = tasks.pieces[offload.piece]
        assert (offload.first, offload.bytes) == (0, piece.bytes)
        assert offload.after < offload.freed_by == offload.leaves + 1
        assert offload.after >= max((task for task in piece.written if task <= offload.leaves), default=-1)
    assert peak(decided(OffloadWith(any_piece))) < peak(decided(OffloadWith(convolution_input))) < peak(decided())


def test_one_layer_ahead() -> None:
    """The copy in begins with the first task of the layer before the one that needs it, in the backward pass."""
    tasks = problem().tasks
    for offload in decided(OffloadWith(any_piece), OneLayerAhead()).offloads:
        layers = [tasks.launch(task).layer for task in tasks.tasks]
        phases = [tasks.launch(task).phase == "forward" for task in tasks.tasks]
        need, begin = offload.needed_by, offload.returns
        if begin == offload.freed_by:
            continue  # it is away for so short a time that it cannot come earlier
        assert begin < need
        between = dict.fromkeys((layers[t], phases[t]) for t in range(begin, need + 1))
        assert len(between) == 2, "this layer and the one before it"
        assert (layers[begin - 1], phases[begin - 1]) != (layers[begin], phases[begin]), "from its first task on"


def test_modnn_takes_the_oldest_where_memory_is_short_and_no_more() -> None:
    """Chen et al., TPDS 2019."""
    loose, tight = peak(decided()), peak(decided(OffloadWith(any_piece)))
    assert decided(OffloadOldest(), budget_bytes=loose).offloads == ()
    budget = (loose + tight) // 2
    chosen = decided(OffloadOldest(), budget_bytes=budget)
    assert peak(chosen) <= budget
    everything = decided(OffloadWith(any_piece)).offloads
    assert 0 < len(chosen.offloads) < len(everything)
    born = [problem().tasks.pieces[o.piece].born for o in chosen.offloads]
    left = {o.piece for o in everything} - {o.piece for o in chosen.offloads}
    first_shortage = int(np.flatnonzero(memory_bytes(problem(), decided()) > budget)[0])
    at_first = [b for b, o in zip(born, chosen.offloads, strict=True) if o.freed_by == first_shortage]
    assert at_first == sorted(at_first)
    there = [p for p, leaves, need in gaps(problem()) if p.index in left and leaves < first_shortage < need]
    assert all(piece.born >= max(at_first) for piece in there), "an older one was left"


# Prefetch


def test_copies_in_are_as_early_as_fits() -> None:
    budget = (peak(decided()) + peak(decided(OffloadWith(any_piece)))) // 2
    late = decided(OffloadWith(any_piece))
    early = apply_passes(within(budget), (ChooseEach(smallest), OffloadWith(any_piece), AsEarlyAsFits()))
    assert peak(early) <= budget
    assert len(early.offloads) == len(late.offloads)
    before = {o.piece: o for o in late.offloads}
    assert any(o.returns < before[o.piece].returns for o in early.offloads)
    live = memory_bytes(problem(), early)
    earliest = 0
    for offload in early.offloads:
        assert offload.freed_by <= offload.returns <= before[offload.piece].returns
        if offload.returns > max(offload.freed_by, earliest):
            assert live[offload.returns - 1] + offload.bytes > budget, "it would have fitted one task earlier"
        earliest = max(earliest, offload.returns)


def test_a_half_window_holds_copies_back() -> None:
    """moDNN's: no earlier than half of 15 % of the tasks before the need."""
    count = len(problem().tasks.tasks)
    free = decided(OffloadWith(any_piece), AsEarlyAsFits())
    held = decided(OffloadWith(any_piece), AsEarlyAsFits(window_percent=15))
    window = count * 15 // 200
    assert all(o.needed_by - o.returns <= window for o in held.offloads)
    assert any(o.needed_by - o.returns > window for o in free.offloads)


# Sub-batches


def brute_window(sub_batches: int) -> int:
    tasks, alignment = problem(sub_batches).tasks, problem().profile.alignment
    width = max(1, len(tasks.tasks) * WINDOW_PERCENT // 100)
    persistent = sum(align_up(p.bytes, alignment) for p in tasks.pieces if p.persistent)
    return persistent + max(
        sum(
            align_up(p.bytes, alignment)
            for p in tasks.pieces
            if not p.persistent and any(first <= use < first + width for use in p.uses)
        )
        for first in range(len(tasks.tasks))
    )


@pytest.mark.parametrize("sub_batches", [1, 2])
def test_modnns_window_is_its_definition(sub_batches: int) -> None:
    assert window_bytes(problem(sub_batches).tasks, problem().profile.alignment) == brute_window(sub_batches)


@pytest.mark.parametrize("budget", range(0, 130, 5))
def test_the_largest_sub_batch_that_fits(budget: int) -> None:
    """Of 12 samples, where windows need 10 bytes a sample of the largest range."""

    def window_of(count: int) -> int:
        return 10 * -(-12 // count)

    count = largest_sub_batch(12, budget, 12, window_of)
    fitting = [size for size in range(1, 13) if 10 * size <= budget]
    assert -(-12 // count) == max((-(-12 // -(-12 // size)) for size in fitting), default=1)


def test_no_more_sub_batches_than_allowed() -> None:
    assert largest_sub_batch(12, 0, 3, lambda count: 1000) == 3


@given(st.integers(1, 40), st.lists(st.integers(0, 9), min_size=40, max_size=40), st.integers(0, 9), st.integers(1, 41))
def test_a_search_that_ends_early_would_have_ended_at_a_number_of_no_use(
    batch: int, windows: list[int], budget: int, useless: int
) -> None:
    def window_of(count: int) -> int:
        return windows[count - 1]

    whole = largest_sub_batch(batch, budget, batch, window_of)
    early = largest_sub_batch(batch, budget, batch, window_of, lambda count: count < useless)
    assert early == whole or (early is None and whole is not None and whole >= useless)


# Memory


def test_memory_adds_up() -> None:
    """Of everything kept: at every task the aligned bytes of the pieces that are alive, and the workspace."""
    decisions = apply_passes(problem(), (ChooseEach(fastest),))
    tasks, alignment = problem().tasks, problem().profile.alignment
    found = memory_bytes(problem(), decisions)
    for index in range(0, len(tasks.tasks), 7):
        alive = 0
        for piece in tasks.pieces:
            last = len(tasks.tasks) if piece.kept else piece.uses[-1] if piece.uses else -1
            alive += align_up(piece.bytes, alignment) if max(piece.born, 0) <= index <= last else 0
        configuration = decisions.configurations[index]
        workspace = 0 if configuration is None else align_up(configuration.workspace_bytes, alignment)
        assert found[index] == alive + workspace
        assert workspace_bytes(problem(), decisions)[index] == workspace


def test_facts_have_names_that_passes_share() -> None:
    assert ChooseEach(fastest).ensures == FitWorkspaces().requires == {CONFIGURED}
    assert isinstance(problem().costs.configurations[0], tuple)
    assert {type(c) for own in problem().costs.configurations for c in own} == {Configuration}
