"""THE FLOW: graph -> training graph -> tasks -> costs -> passes -> schedule -> layout -> plan, for one candidate.

`Workload` is what all candidates of a compilation share; `draft` takes one candidate through the flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planc.assembly import Part
from planc.costs import CostTable, make_costs
from planc.errors import InfeasibleError, InternalError
from planc.graph import Graph
from planc.passes.base import Decisions, Pass, Problem, apply_passes, memory_bytes
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces, fastest, smallest
from planc.passes.inputs import HostInputs
from planc.passes.offload import OffloadEverything
from planc.passes.prefetch import AsEarlyAsFits
from planc.passes.visits import LongerVisits
from planc.placement import Arena, host_pool_bytes, place
from planc.policies import Candidate, with_part_bytes
from planc.profile import Profile
from planc.rebuild import with_rebuilds
from planc.schedule import make_schedule
from planc.tasks import TaskList, make_tasks
from planc.training import make_evaluation_graph, make_training_graph
from planc.training_graph import NO_PATH, TrainingGraph, TrainingOptions

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, what is trained of it, and the device: everything but the budget."""

    graph: Graph
    training: TrainingGraph
    evaluation: TrainingGraph
    profile: Profile
    arena: Arena = "auto"
    host_bytes: int = UNLIMITED
    """What all host buffers of a plan may take."""
    _tasks: dict[tuple[bool, int], TaskList] = field(default_factory=dict)
    _costs: dict[tuple[bool, int, str], CostTable] = field(default_factory=dict)
    """Tasks and costs by (training, sub-batches, micro-batches): the same for every candidate."""
    smallest: dict[tuple[int | None, int, str], int] = field(default_factory=dict)
    """Smallest budgets found so far, by (sub-batches, most steps, host parameters)."""

    @classmethod
    def of(cls, graph: Graph, options: TrainingOptions, profile: Profile, arena: Arena = "auto") -> Workload:
        return cls(graph, make_training_graph(graph, options), make_evaluation_graph(graph, options), profile, arena)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever trains this should know: of the file, and of weights that stay as they are."""
        lost = [name for name, reason in self.training.frozen if reason == NO_PATH]
        if not lost:
            return self.graph.warnings
        return (*self.graph.warnings, f"weights that are not trained, {NO_PATH}: {len(lost)} (first {lost[0]!r}).")

    def problem(
        self,
        sub_batches: int,
        budget_bytes: int,
        *,
        training: bool = True,
        micro_batches: str = "undivided",
        workspace_bytes: int | None = None,
    ) -> Problem:
        """Tasks and costs of the training (or the evaluation) program with the batch in `sub_batches` ranges."""
        tasks = self.tasks(sub_batches, training=training)
        key = (training, sub_batches, micro_batches)
        if key not in self._costs:
            self._costs[key] = make_costs(tasks, self.profile, micro_batches)
        return Problem(tasks, self._costs[key], self.profile, budget_bytes, workspace_bytes)

    def tasks(self, sub_batches: int, *, training: bool = True) -> TaskList:
        """Tasks of the training (or the evaluation) program with the batch in `sub_batches` ranges."""
        key = (training, sub_batches)
        if key not in self._tasks:
            self._tasks[key] = make_tasks(self.training if training else self.evaluation, sub_batches)
        return self._tasks[key]


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate taken through the flow: everything decided and placed."""

    candidate: Candidate
    sub_batches: int
    train: Part
    evaluate: Part
    arena: Arena

    @property
    def arena_bytes(self) -> int:
        """What both programs need."""
        return max(self.train.placement.arena_bytes, self.evaluate.placement.arena_bytes)


class SlowerError(InfeasibleError):
    """A candidate fits, but a faster plan is known."""


class HostMemoryError(InfeasibleError):
    """A candidate fits the budget, but not the host's."""


def draft(
    workload: Workload,
    candidate: Candidate,
    sub_batches: int,
    budget_bytes: int,
    *,
    below_ns: int = UNLIMITED,
    workspace_bytes: int | None = None,
) -> Draft:
    """Take one candidate through the flow; one that fills its memory again with less where its layout overflows.

    Raises:
        InfeasibleError: its memory or its layout exceeds the budget, or its makespan is not below `below_ns`.
    """
    whole = workload.problem(
        sub_batches, budget_bytes, micro_batches=candidate.micro_batches, workspace_bytes=workspace_bytes
    )
    target, above, below, bound_ns, needed = budget_bytes, budget_bytes, 0, None, UNLIMITED
    for left in range(_TRIES if candidate.fills else 1, 0, -1):
        try:
            problem, decisions = decide(replace(whole, budget_bytes=target), candidate)
            bound_ns = decisions.bound_ns if bound_ns is None else bound_ns  # proven for the whole budget
            decisions = replace(decisions, bound_ns=bound_ns)
            problem = replace(problem, budget_bytes=budget_bytes)
            return draft_of(workload, candidate, problem, decisions, below_ns=below_ns)
        except (SlowerError, HostMemoryError) as error:
            error.bound_ns = bound_ns
            raise
        except InfeasibleError as error:
            error.bound_ns = bound_ns
            if error.smallest_budget_bytes is None and target < budget_bytes:
                below, target = target, (target + above) // 2  # too little for any plan: between this and the last
            elif error.smallest_budget_bytes is None or left == 1:
                raise
            else:
                above = target
                target = max(target * budget_bytes // error.smallest_budget_bytes - 1, below + 1)
                if error.smallest_budget_bytes >= needed:  # the same layout again: ask for clearly less
                    target = max(target * 95 // 100, (above + below) // 2)
                needed = error.smallest_budget_bytes
            if left == 1:
                raise
    raise InternalError("a candidate is tried at least once")


PART_SIZES = (16 * 2**20, 8 * 2**20, 4 * 2**20)
"""Bytes of the parts that copies are cut into; of equally fast ones the largest."""

_TRIES = 6
"""How often a candidate that fills its memory may be given less of it."""


def decide(problem: Problem, candidate: Candidate) -> tuple[Problem, Decisions]:
    """Everything a candidate decides; recomputations have become tasks of the problem that is returned."""
    decisions = apply_passes(problem, candidate.passes)
    if decisions.rebuilds:
        rewritten = with_rebuilds(problem, decisions)
        problem, decisions = rewritten.problem, rewritten.decisions
    if not candidate.proves:
        return problem, apply_passes(problem, candidate.timing, decisions)
    timed = (apply_passes(problem, with_part_bytes(candidate.timing, size), decisions) for size in PART_SIZES)
    return problem, min(timed, key=lambda each: make_schedule(problem, each).makespan_ns())


def draft_of(
    workload: Workload,
    candidate: Candidate,
    problem: Problem,
    decisions: Decisions,
    *,
    below_ns: int = UNLIMITED,
    enough_bytes: int | None = None,
) -> Draft:
    """Schedule and place given decisions, and the evaluation program beside them in the same arena.

    `enough_bytes`: how small the arena must be to look no further; None = the budget, 0 = as small as can be.
    """
    budget_bytes = problem.budget_bytes
    needed = int(memory_bytes(problem, decisions).max())
    if needed > budget_bytes:
        raise InfeasibleError(
            f"{candidate.name}: needs {needed} bytes at once, the budget is {budget_bytes}.",
            smallest_budget_bytes=needed,
        )
    schedule = make_schedule(problem, decisions)
    if schedule.makespan_ns() >= below_ns:
        raise SlowerError(f"{candidate.name}: a faster plan is known.")
    placement = place(problem, schedule, budget_bytes if enough_bytes is None else enough_bytes, workload.arena)
    if placement.arena_bytes > budget_bytes:
        raise InfeasibleError(
            f"{candidate.name}: its layout needs {placement.arena_bytes} bytes.",
            smallest_budget_bytes=placement.arena_bytes,
        )
    train = Part("train", problem, decisions, schedule, placement)
    evaluate = _evaluation(workload, candidate, len(problem.tasks.ranges), train.placement.arena_bytes, budget_bytes)
    host = max(host_pool_bytes(part.problem, part.decisions) for part in (train, evaluate))
    if host > workload.host_bytes:
        raise HostMemoryError(
            f"{candidate.name}: needs {host} bytes of host memory, {workload.host_bytes} are allowed."
        )
    return Draft(candidate, len(problem.tasks.ranges), train, evaluate, workload.arena)


def _evaluation(
    workload: Workload, candidate: Candidate, sub_batches: int, arena_bytes: int, budget_bytes: int
) -> Part:
    """The evaluation program, in the arena that training needs anyway if it can be, else in the budget."""
    visits = candidate.visits
    longer = (LongerVisits(),) if visits else ()
    resident: tuple[Pass, ...] = (*visits, ChooseEach(fastest), FitWorkspaces())
    waiting: tuple[Pass, ...] = (
        ChooseEach(smallest),
        HostInputs(),
        *visits,
        *longer,
        AsEarlyAsFits(),
        ChooseEach(fastest),
        FitWorkspaces(),
    )
    away: tuple[Pass, ...] = (ChooseEach(smallest), OffloadEverything(), HostInputs(), *visits)
    tries = ((arena_bytes, resident), (arena_bytes, waiting), (arena_bytes, away), (budget_bytes, away))
    for limit, passes in tries:
        problem = workload.problem(sub_batches, limit, training=False)
        decisions = apply_passes(problem, passes)
        schedule = make_schedule(problem, decisions)
        part = Part("evaluate", problem, decisions, schedule, place(problem, schedule, limit, workload.arena))
        if part.placement.arena_bytes <= limit:
            return part
    raise InfeasibleError(f"the evaluation program needs {part.placement.arena_bytes} bytes.")
