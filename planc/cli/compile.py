"""`planc compile`: a model and a budget in, a plan out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from planc import candidates
from planc import explain as explanation
from planc.cli.options import FILE, budget, json_option
from planc.cli.output import note, print_json, print_result, warn
from planc.cli.source import (
    batch_option,
    model_argument,
    profile_option,
    source_of,
    training_options,
    workspace_option,
)
from planc.errors import UsageError
from planc.options import DEFAULT_PROFILE, HOST_PARAMETERS
from planc.passes.recipes import RECOMPUTE
from planc.placement import ARENAS, Arena
from planc.plan import Plan
from planc.plan_json import check_place, read_plan, write_plan
from planc.policies import POLICIES
from planc.units import format_bytes, format_ns

EXAMPLES = """\b
Examples:
  planc compile model.onnx --budget 4GB --batch 64 -o plan.json
  planc compile model.onnx --budget 60% --profile rtx-3090-24gb --optimizer adam --lr 0.001 -o plan.json
  planc compile model.onnx --budget 60% --profile cpu --batch 8 --json
  planc compile model.onnx --policy keep-all --like plan.json -o reference.json
  planc compile model.onnx --policy ucudnn-wr --workspace 64MiB -o plan.json

\b
Sizes: 4GB = 4000000000 bytes, 4GiB = 4294967296 bytes, a bare number is bytes, and 60% is that share of what keeping
everything in memory needs. Without --budget it is the device's memory less what its context and libraries take.
"""


@click.command("compile", epilog=EXAMPLES)
@model_argument
@click.option(
    "--budget", type=budget, metavar="SIZE", help="Largest arena, such as 4GB or 60%.  [default: what the device has]"
)
@batch_option
@profile_option(DEFAULT_PROFILE)
@click.option("--policy", type=click.Choice(list(POLICIES)), default="auto", show_default=True, help="How to plan.")
@workspace_option
@click.option(
    "--sub-batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cut the batch into that many.  [default: what is best]",
)
@click.option(
    "--recompute",
    type=click.Choice(list(RECOMPUTE)),
    default="any",
    show_default=True,
    help="What may be computed again; cheap: no convolutions and products.",
)
@click.option(
    "--host-parameters",
    type=click.Choice(list(HOST_PARAMETERS)),
    default="auto",
    show_default=True,
    help="Whether parameters and optimizer state may live on the host; auto: where no other plan fits.",
)
@click.option(
    "--host-budget", type=budget, metavar="SIZE", help="Most that buffers on the host may take.  [default: no bound]"
)
@click.option(
    "--arena",
    type=click.Choice(list(ARENAS)),
    default="auto",
    show_default=True,
    help="contiguous, paged, or the first of them that fits.",
)
@click.option("--explain", is_flag=True, help="Say what binds, and what more memory would buy.")
@training_options
@click.option(
    "--like", type=FILE, help="Reuse this plan's ranges, order and algorithms (results are then bit-identical)."
)
@click.option("-o", "--output", type=FILE, help="Write the plan there.")
@json_option
def command(
    model: Path,
    budget: str | None,
    batch: int | None,
    profile: str | None,
    policy: str,
    workspace: str | None,
    sub_batches: int | None,
    recompute: str,
    host_parameters: str,
    host_budget: str | None,
    arena: Arena,
    explain: bool,
    like: Path | None,
    output: Path | None,
    as_json: bool,
    **training: Any,
) -> Plan:
    """Turn a model and a memory budget into a plan.

    The plan says for one training step what runs when, what leaves for the host and returns, and where every byte lies.
    It is verified before it is written. Exit code 3: no plan fits the budget; the message says what would.
    """
    _check_output(output, {"model": model, "plan given by --like": like})
    source = source_of(model, training)
    workload = replace(source.workload(batch, profile or DEFAULT_PROFILE), arena=arena)
    warn(workload.warnings)
    options = source.options(
        budget=budget,
        policy=policy,
        workspace=workspace,
        sub_batches=sub_batches,
        recompute=recompute,
        host_parameters=host_parameters,
        host_budget=host_budget,
    )
    plan = candidates.compile_workload(workload, options, like=None if like is None else read_plan(like))
    _warn_of_device(plan)
    if plan.provenance.options.get("solver"):
        warn([plan.provenance.options["solver"]])
    if output is not None:
        write_plan(output, plan)
    words = explanation.sentences(workload, plan, explanation.explain(workload, options, plan)) if explain else ()
    if as_json:
        print_json(document(plan) | ({"explanation": list(words)} if explain else {}))
    else:
        print_result(summary(plan, default_profile=profile is None), *words)
        note(f"the plan is in {output}" if output is not None else "the plan was not written; give -o plan.json")
    return plan


def _check_output(output: Path | None, inputs: Mapping[str, Path | None]) -> None:
    """Find out before the work that the plan has no place of its own."""
    if output is None:
        return
    check_place(output)
    for name, given in inputs.items():
        if given is not None and output.exists() and given.exists() and output.samefile(given):
            raise UsageError(f"-o {str(output)!r}: is the {name}.", "Choose another place.")


def _warn_of_device(plan: Plan) -> None:
    spaces = plan.spaces
    if spaces.budget_bytes + spaces.reserved_bytes > spaces.device_bytes:
        warn(
            [
                f"budget {spaces.budget_bytes} bytes and {spaces.reserved_bytes} bytes reserved for context and "
                f"libraries exceed the device's {spaces.device_bytes} bytes ({plan.provenance.profile})."
            ]
        )


def document(plan: Plan) -> dict[str, object]:
    """What --json prints; null where a figure is not known."""
    predicted, spaces = plan.predicted, plan.spaces
    return {
        "budget_bytes": spaces.budget_bytes,
        "arena_bytes": spaces.arena_bytes,
        "peak_bytes": predicted.peak_bytes,
        "keep_all_bytes": predicted.keep_all_bytes,
        "makespan_ns": predicted.makespan_ns,
        "ideal_ns": predicted.ideal_ns,
        "bound_ns": predicted.bound_ns,
        "gap_ppm": predicted.gap_ppm,
        "sub_batches": int(plan.provenance.options["sub_batches"]),
        "offloaded_bytes": predicted.offloaded_bytes,
        "recomputed_bytes": predicted.recomputed_bytes,
        "host_bytes": spaces.host_bytes,
        "steps": len(plan.train.steps),
        "policy": plan.provenance.options["policy"],
        "semantics": plan.semantics,
    }


def summary(plan: Plan, *, default_profile: bool = False) -> Table:
    """The short table a person wants."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(plan, default_profile):
        table.add_row(Text(name, style="" if name.startswith(" ") else "bold"), Text(text))
    return table


def _rows(plan: Plan, default_profile: bool) -> list[tuple[str, str]]:
    predicted, spaces, options = plan.predicted, plan.spaces, plan.provenance.options
    estimated = ", estimated from its datasheet" if plan.provenance.estimated else ""
    rows = [
        ("profile", f"{plan.provenance.profile}{' (the default)' if default_profile else ''}{estimated}"),
        ("budget", f"{_both(spaces.budget_bytes)}; outside it {format_bytes(spaces.reserved_bytes)} reserved"),
        ("arena", f"{_both(spaces.arena_bytes)}{_share(spaces.arena_bytes, predicted.keep_all_bytes)}"),
        ("peak", _both(predicted.peak_bytes)),
    ]
    by_kind = sorted(predicted.bytes_by_kind.items(), key=lambda item: (-item[1], item[0]))
    rows += [(f"  {kind}", format_bytes(size)) for kind, size in by_kind]
    rows += [
        ("batch", f"{plan.model.batch} samples, sub-batches: {options['sub_batches']}"),
        ("offloaded", f"{_both(predicted.offloaded_bytes)}; host memory {format_bytes(spaces.host_bytes)}"),
        ("recomputed", _both(predicted.recomputed_bytes)),
        ("step time", f"{format_ns(predicted.makespan_ns)} predicted{_overhead(plan)}"),
        ("bound", _proof(plan)),
        ("policy", f"{options['policy']} (chose: {options['candidate']}), {len(plan.train.steps)} steps"),
    ]
    if plan.semantics != "exact":
        rows.append(("semantics", f"{plan.semantics}: {plan.semantics_reason}"))
    return rows


def _both(size: int) -> str:
    return f"{format_bytes(size)} ({size} bytes)" if size >= 1024 else f"{size} bytes"


def _share(size: int, keep_all_bytes: int | None) -> str:
    if not keep_all_bytes:
        return ""
    return f", {size / keep_all_bytes:.1%} of what keeping everything needs ({format_bytes(keep_all_bytes)})"


def _proof(plan: Plan) -> str:
    bound, gap = plan.predicted.bound_ns, plan.predicted.gap_ppm
    if bound is None or gap is None:
        return "none for plans of this kind"
    return f"no plan of the class takes less than {format_ns(bound)}: at most {gap / 10**4:.2f} % to gain"


def _overhead(plan: Plan) -> str:
    ideal = plan.predicted.ideal_ns
    if not ideal:
        return ""
    return f", {plan.predicted.makespan_ns / ideal - 1:+.1%} over the ideal {format_ns(ideal)} (everything resident)"
