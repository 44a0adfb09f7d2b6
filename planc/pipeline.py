"""THE FLOW: graph -> training graph -> tasks -> costs -> passes -> schedule -> layout -> plan, for one candidate.

`Workload` is what all candidates of a compilation share; `draft` takes one candidate through the flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planc.assembly import Assembled, Part, assemble
from planc.costs import CostTable, make_costs
from planc.errors import InfeasibleError
from planc.graph import Graph
from planc.passes.base import Decisions, Pass, Problem, apply_passes, memory_bytes
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces, fastest, smallest
from planc.passes.inputs import HostInputs
from planc.passes.offload import OffloadEverything
from planc.passes.prefetch import AsEarlyAsFits
from planc.placement import place
from planc.policies import Candidate
from planc.profile import Profile
from planc.rebuild import with_rebuilds
from planc.schedule import make_schedule
from planc.tasks import TaskList, make_tasks
from planc.training import make_evaluation_graph, make_training_graph
from planc.training_graph import TrainingGraph, TrainingOptions

UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, what is trained of it, and the device: everything but the budget."""

    graph: Graph
    training: TrainingGraph
    evaluation: TrainingGraph
    profile: Profile
    _tasks: dict[tuple[bool, int], TaskList] = field(default_factory=dict)
    _costs: dict[tuple[bool, int, str], CostTable] = field(default_factory=dict)
    """Tasks and costs by (training, sub-batches, micro-batches): the same for every candidate."""

    @classmethod
    def of(cls, graph: Graph, options: TrainingOptions, profile: Profile) -> Workload:
        return cls(graph, make_training_graph(graph, options), make_evaluation_graph(graph, options), profile)

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
    assembled: Assembled


def draft(
    workload: Workload,
    candidate: Candidate,
    sub_batches: int,
    budget_bytes: int,
    *,
    below_ns: int = UNLIMITED,
    workspace_bytes: int | None = None,
) -> Draft:
    """Take one candidate through the flow.

    Raises:
        InfeasibleError: its memory or its layout exceeds the budget, or its makespan is not below `below_ns`.
    """
    problem = workload.problem(
        sub_batches, budget_bytes, micro_batches=candidate.micro_batches, workspace_bytes=workspace_bytes
    )
    problem, decisions = decide(problem, candidate)
    return draft_of(workload, candidate, problem, decisions, below_ns=below_ns)


def decide(problem: Problem, candidate: Candidate) -> tuple[Problem, Decisions]:
    """Everything a candidate decides; recomputations have become tasks of the problem that is returned."""
    decisions = apply_passes(problem, candidate.passes)
    if decisions.rebuilds:
        rewritten = with_rebuilds(problem, decisions)
        problem, decisions = rewritten.problem, rewritten.decisions
    return problem, apply_passes(problem, candidate.timing, decisions)


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
        raise InfeasibleError(f"{candidate.name}: needs {needed} bytes at once, the budget is {budget_bytes}.")
    schedule = make_schedule(problem, decisions)
    if schedule.makespan_ns() >= below_ns:
        raise InfeasibleError(f"{candidate.name}: a faster plan is known.")
    placement = place(problem, schedule, budget_bytes if enough_bytes is None else enough_bytes)
    train = Part("train", problem, decisions, schedule, placement)
    if train.placement.arena_bytes > budget_bytes:
        raise InfeasibleError(f"{candidate.name}: its layout needs {train.placement.arena_bytes} bytes.")
    evaluate = _evaluation(workload, len(problem.tasks.ranges), train.placement.arena_bytes, budget_bytes)
    return Draft(candidate, len(problem.tasks.ranges), train, evaluate, assemble(train, evaluate))


def _evaluation(workload: Workload, sub_batches: int, arena_bytes: int, budget_bytes: int) -> Part:
    """The evaluation program, in the arena that training needs anyway if it can be, else in the budget."""
    resident = (ChooseEach(fastest), FitWorkspaces())
    waiting: tuple[Pass, ...] = (ChooseEach(smallest), HostInputs(), AsEarlyAsFits(), *resident)
    away: tuple[Pass, ...] = (ChooseEach(smallest), OffloadEverything(), HostInputs())
    tries = ((arena_bytes, resident), (arena_bytes, waiting), (arena_bytes, away), (budget_bytes, away))
    for limit, passes in tries:
        problem = workload.problem(sub_batches, limit, training=False)
        decisions = apply_passes(problem, passes)
        schedule = make_schedule(problem, decisions)
        part = Part("evaluate", problem, decisions, schedule, place(problem, schedule, limit))
        if part.placement.arena_bytes <= limit:
            return part
    raise InfeasibleError(f"the evaluation program needs {part.placement.arena_bytes} bytes.")
