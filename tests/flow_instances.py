"""Small random training problems, and a judge of decisions that knows nothing of the flow program.

The judge cuts copies into blocks and tries orders on the link; each schedule it finds is one that a plan of the class
could follow, so none may be faster than the bound.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import inf

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from planc.costs import CostTable
from planc.micro_batch import Configuration
from planc.onnx_loader import load_model
from planc.passes.base import Decisions, Problem, Rebuild, gaps, resident_bytes, workspace_bytes
from planc.passes.flow_milp import FlowSolution
from planc.passes.flow_phases import FlowFacts, gather_facts
from planc.passes.offload import last_write
from planc.passes.recipes import find_recipes
from planc.profile import load_profile
from planc.rebuild import with_rebuilds
from planc.tasks import TaskList, make_tasks
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions
from planc.units import align_up

BLOCKS = 8
MOST_COMBINATIONS = 6000


def random_tasks(seed: int) -> TaskList:
    """The training tasks of a random network of 4 to 7 layers with a few branches."""
    draw = random.Random(seed)
    nodes, weights = [], []
    channels = {"images": 3}
    alive = ["images"]

    def node(op: str, inputs: Sequence[str], width: int, **attrs: object) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(nodes)}", **attrs))
        channels[name] = width
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights.append(numpy_helper.from_array(np.full(shape, 0.1, np.float32), name))
        return name

    x = node("Conv", ["images", weight(4, 3, 3, 3)], 4, kernel_shape=[3, 3], pads=[1] * 4)
    for _ in range(draw.randint(3, 6)):
        alive.append(x)
        op = draw.choice(["Conv", "Conv", "Relu", "Tanh", "Sigmoid", "Add", "Mul", "Concat", "MaxPool"])
        same = [t for t in alive[1:] if channels[t] == channels[x] and t != x]
        if op == "Conv":
            width = draw.choice([2, 4, 6])
            x = node(op, [x, weight(width, channels[x], 3, 3)], width, kernel_shape=[3, 3], pads=[1] * 4)
        elif op in ("Add", "Mul") and same:
            x = node(op, [x, draw.choice(same)], channels[x])
        elif op == "Concat" and len(alive) > 2:
            other = draw.choice(alive[1:-1])
            x = node(op, [x, other], channels[x] + channels[other], axis=1)
        elif op == "MaxPool":
            x = node(op, [x], channels[x], kernel_shape=[3, 3], pads=[1] * 4)
        else:
            x = node(op if op in ("Relu", "Tanh") else "Sigmoid", [x], channels[x])
    pooled = node("Flatten", [node("GlobalAveragePool", [x], channels[x])], channels[x], axis=1)
    node("Gemm", [pooled, weight(5, channels[x])], 5, transB=1)
    nodes[-1].output[0] = "scores"
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 12, 12])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 5])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = load_model(model, batch=4)
    return make_tasks(make_training_graph(loaded, TrainingOptions()), draw.choice([1, 1, 1, 2]))


def random_problem(seed: int) -> Problem:
    """`random_tasks` with random durations, two configurations for a few calls, a random link and budget."""
    draw = random.Random(seed + 10**6)
    tasks = random_tasks(seed)
    durations, options = [], []
    choices = 0
    for task in tasks.tasks:
        time = draw.randint(500, 5000)
        own: tuple[Configuration, ...] = ()
        if tasks.launch(task).op.startswith("Conv"):
            own = (Configuration((("A", task.samples),), draw.choice([0, 4096, 16384]), time),)
            if choices < 2 and own[0].workspace_bytes and draw.random() < 0.5:
                own = (*own, Configuration((("B", task.samples),), 0, time + draw.randint(200, 3000)))
                choices += 1
        durations.append(time)
        options.append(own)
    profile = load_profile("v100-16gb")
    total = sum(durations)
    moved = sum(piece.bytes for piece, _, _ in gaps(Problem(tasks, CostTable((), (), profile), profile, 0)))
    rate = int(10**9 * moved / total * draw.choice([0.5, 1, 2, 4, 8]))
    profile = replace(
        profile,
        h2d_bytes_per_s=rate,
        d2h_bytes_per_s=int(rate * draw.choice([0.7, 1, 1.3])),
        duplex_h2d="1",
        duplex_d2h="1",
        copy_latency_ns=0,
    )
    problem = Problem(tasks, CostTable(tuple(durations), tuple(options), profile), profile, 0)
    everything = memory(problem, Decisions(tuple(own[0] if own else None for own in options)))
    least = max(everything) - max(moved * 9 // 10, 1)
    share = draw.uniform(0.3, 0.95)
    budget = int(max(least, 0) + share * (max(everything) - max(least, 0)))
    return replace(problem, budget_bytes=align_up(budget, profile.alignment))


def memory(problem: Problem, decisions: Decisions) -> list[int]:
    """Bytes during each task if nothing leaves."""
    return [int(n) for n in resident_bytes(problem, ()) + workspace_bytes(problem, decisions)]


def all_decisions(problem: Problem, facts: FlowFacts) -> list[Decisions] | None:
    """Everything that the class lets one decide, by rising compute time; None if that is too much to try."""
    ways = [("keep", "offload", "rebuild") if v.recipe else ("keep", "offload") for v in facts.visitors]
    calls = [own or (None,) for own in problem.costs.configurations]
    size = 1
    for count in (*map(len, ways), *map(len, calls)):
        size *= count
    if size > MOST_COMBINATIONS:
        return None
    found = []
    for chosen in product(*ways):
        rebuilds = _rebuilds(facts, [n for n, way in enumerate(chosen) if way == "rebuild"])
        if rebuilds is None:
            continue
        leaving = frozenset(v.piece for v, way in zip(facts.visitors, chosen, strict=True) if way == "offload")
        for configurations in product(*calls):
            found.append(Decisions(configurations, rebuilds=rebuilds, leaving=leaving))  # noqa: PERF401
    return sorted(found, key=lambda decisions: compute_ns(problem, decisions))


def _rebuilds(facts: FlowFacts, chosen: Sequence[int]) -> tuple[Rebuild, ...] | None:
    """Each as late as it can be; None where that is outside the class."""
    before = {n: facts.visitors[n].needed_by for n in chosen}
    number = {v.piece: n for n, v in enumerate(facts.visitors)}
    order = sorted(chosen, key=lambda n: facts.visitors[n].recipe.tasks[-1])
    for reader in reversed(order):
        for piece in facts.visitors[reader].recipe.ancestors:
            n = number.get(piece)
            if n in before and before[reader] > facts.visitors[n].leaves:
                before[n] = min(before[n], before[reader])
    if any(before[n] not in facts.visitors[n].rebuilt_at for n in chosen):
        return None
    return tuple(
        Rebuild(v.piece, v.leaves, before[n], v.needed_by, v.recipe.tasks)
        for n in sorted(order, key=lambda n: before[n])
        for v in (facts.visitors[n],)
    )


def compute_ns(problem: Problem, decisions: Decisions) -> int:
    again = [t for rebuild in decisions.rebuilds for t in rebuild.recipe]
    return sum(
        problem.costs.duration_ns(t, decisions.configurations[t]) for t in (*range(len(problem.tasks.tasks)), *again)
    )


def allowed(problem: Problem, facts: FlowFacts, decisions: Decisions) -> bool:
    """Whether calls that recipes repeat have the recipes' configurations."""
    rebuilt = {rebuild.piece for rebuild in decisions.rebuilds}
    return all(
        named is None or decisions.configurations[task] == named
        for v in facts.visitors
        if v.recipe and v.piece in rebuilt
        for task, named in zip(v.recipe.tasks, v.recipe.configurations, strict=True)
    )


@dataclass
class Block:
    bytes: int
    after: int
    leaves: int
    needed: int
    freed: int | None = None
    returns: int | None = None


def best_schedule_ns(problem: Problem, decisions: Decisions) -> float | None:
    """The fastest schedule the judge finds for these decisions, None if it finds none that fits."""
    if decisions.rebuilds:
        rewritten = with_rebuilds(problem, decisions)
        problem, decisions = rewritten.problem, rewritten.decisions
    base = memory(problem, decisions)
    durations = [problem.costs.duration_ns(t, c) for t, c in enumerate(decisions.configurations)]
    leaving = decisions.leaving or frozenset()
    visits = [
        (problem.bytes(piece), last_write(piece, leaves), leaves, needed)
        for piece, leaves, needed in gaps(problem)
        if piece.index in leaving
    ]
    found = [
        time
        for order in _orders(visits)
        for eager in (True, False)
        if (time := _schedule(problem, base, durations, order, eager=eager)) is not None
    ]
    return min(found, default=None)


_Visit = tuple[int, int, int, int]


def _orders(visits: Sequence[_Visit]) -> Iterator[tuple[_Visit, ...]]:
    if len(visits) <= 3:
        yield from permutations(visits)
    else:
        yield tuple(sorted(visits, key=lambda v: (v[2], v[1])))
        yield tuple(sorted(visits, key=lambda v: (v[1], v[2])))


def _blocks(problem: Problem, order: Sequence[_Visit]) -> list[Block]:
    alignment = problem.profile.alignment
    blocks = []
    for size, after, leaves, needed in order:
        step = align_up(-(-size // BLOCKS), alignment)
        blocks += [Block(min(step, size - at), after, leaves, needed) for at in range(0, size, step)]
    return blocks


def _schedule(
    problem: Problem, base: Sequence[int], durations: Sequence[int], order: Sequence[_Visit], *, eager: bool
) -> float | None:
    budget = problem.budget_bytes
    blocks = _blocks(problem, order)
    live = list(base)
    for task in range(len(live)):
        for block in blocks:
            if live[task] <= budget:
                break
            if block.freed is None and block.leaves < task < block.needed:
                block.freed = task
                for t in range(task, block.needed):
                    live[t] -= block.bytes
        if live[task] > budget:
            return None
    starts, out, makespan = _run(problem, durations, blocks)
    if makespan == inf:
        return None  # a task waits for a copy that stands behind one of what is not written yet
    for block, ended in zip(blocks, out, strict=True):
        first = next((t for t in range(block.leaves + 1, block.needed) if starts[t] >= ended), block.needed)
        if block.freed is None or (eager and first < block.freed):
            for t in range(first, block.needed if block.freed is None else block.freed):
                live[t] -= block.bytes
            block.freed = first
        block.returns = block.needed
    earliest = 0
    for block in sorted(blocks, key=lambda b: b.needed):
        begin = block.needed
        while begin > max(block.freed, earliest) and live[begin - 1] + block.bytes <= budget:
            begin -= 1
        for t in range(begin, block.needed):
            live[t] += block.bytes
        block.returns = earliest = max(begin, earliest)
    assert max(live) <= budget
    return _run(problem, durations, blocks)[2]


def _run(problem: Problem, durations: Sequence[int], blocks: Sequence[Block]) -> tuple[list[float], list[float], float]:
    """Starts of tasks, ends of copies out, and the makespan: tasks wait for what frees and for what they need."""
    out_rate = problem.profile.d2h_duplex_bytes_per_s / 1e9
    into_rate = problem.profile.h2d_duplex_bytes_per_s / 1e9
    incoming = sorted(range(len(blocks)), key=lambda n: blocks[n].needed)
    ends: list[float] = []
    starts: list[float] = []
    out = [inf] * len(blocks)  # not begun
    into = [0.0] * len(blocks)
    out_free = into_free = 0.0
    next_out = 0
    for task, duration in enumerate(durations):
        while next_out < len(blocks) and blocks[next_out].after < task:
            ready = ends[blocks[next_out].after] if blocks[next_out].after >= 0 else 0.0
            out_free = out[next_out] = max(out_free, ready) + blocks[next_out].bytes / out_rate
            next_out += 1
        at = ends[-1] if ends else 0.0
        at = max([at, *(out[n] for n, b in enumerate(blocks) if b.freed == task)])
        for n in incoming:
            if blocks[n].returns == task:
                into_free = into[n] = max(into_free, at, out[n]) + blocks[n].bytes / into_rate
        at = max([at, *(into[n] for n, b in enumerate(blocks) if b.returns is not None and b.needed == task)])
        starts.append(at)
        ends.append(at + duration)
    return starts, out, ends[-1]


@dataclass
class Verdict:
    """best_ns: of all decisions, as the judge schedules them; own_ns: of the solution's."""

    best_ns: float | None
    own_ns: float | None
    tried: int


def judge(problem: Problem, solution: FlowSolution | None) -> Verdict | None:
    """Every decision tried, but those whose compute time alone is no better; None if there are too many."""
    facts = gather_facts(problem, find_recipes(problem, "any"))
    every = all_decisions(problem, facts)
    if every is None:
        return None
    best: float | None = None
    tried = 0
    for decisions in every:
        if best is not None and compute_ns(problem, decisions) >= best:
            break
        if allowed(problem, facts, decisions):
            time = best_schedule_ns(problem, decisions)
            tried += 1
            if time is not None and (best is None or time < best):
                best = time
    own = None
    if solution is not None:
        taken = Decisions(solution.configurations, rebuilds=solution.rebuilds, leaving=frozenset(solution.offloaded))
        own = best_schedule_ns(problem, taken)
    return Verdict(best, own, tried)
