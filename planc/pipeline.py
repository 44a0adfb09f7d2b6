"""THE FLOW: graph -> training graph -> tasks -> costs -> passes -> schedule -> layout -> plan, for one candidate.

`Workload` is what all candidates of a compilation share; `draft` takes one candidate through the flow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planc.assembly import Assembled, Part, assemble
from planc.costs import make_costs
from planc.errors import InfeasibleError
from planc.graph import Graph
from planc.passes.base import Decisions, Problem, apply_passes, memory_bytes
from planc.passes.conv_algorithm import ChooseEach, FitWorkspaces, fastest
from planc.placement import Placement, place
from planc.policies import Candidate
from planc.profile import Profile
from planc.schedule import Schedule, make_schedule
from planc.tasks import make_tasks
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
    _problems: dict[tuple[bool, int], Problem] = field(default_factory=dict)
    """Tasks and costs by (training, sub-batches): the same for every candidate."""

    @classmethod
    def of(cls, graph: Graph, options: TrainingOptions, profile: Profile) -> Workload:
        return cls(graph, make_training_graph(graph, options), make_evaluation_graph(graph, options), profile)

    def problem(self, sub_batches: int, budget_bytes: int, *, training: bool = True) -> Problem:
        """Tasks and costs of the training (or the evaluation) program with the batch in `sub_batches` ranges."""
        key = (training, sub_batches)
        if key not in self._problems:
            tasks = make_tasks(self.training if training else self.evaluation, sub_batches)
            self._problems[key] = Problem(tasks, make_costs(tasks, self.profile), self.profile, UNLIMITED)
        known = self._problems[key]
        return Problem(known.tasks, known.costs, known.profile, budget_bytes)


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate taken through the flow: everything decided and placed."""

    candidate: Candidate
    sub_batches: int
    train: Part
    evaluate: Part
    assembled: Assembled


def draft(workload: Workload, candidate: Candidate, sub_batches: int, budget_bytes: int) -> Draft:
    """Take one candidate through the flow.

    Raises:
        InfeasibleError: its memory or its layout exceeds the budget.
    """
    problem = workload.problem(sub_batches, budget_bytes)
    decisions = apply_passes(problem, candidate.passes)
    return draft_of(workload, candidate, problem, decisions)


def draft_of(workload: Workload, candidate: Candidate, problem: Problem, decisions: Decisions) -> Draft:
    """Schedule and place given decisions, and the evaluation program beside them in the same arena."""
    budget_bytes = problem.budget_bytes
    needed = int(memory_bytes(problem, decisions).max())
    if needed > budget_bytes:
        raise InfeasibleError(f"{candidate.name}: needs {needed} bytes at once, the budget is {budget_bytes}.")
    train = _part("train", problem, decisions)
    if train.placement.arena_bytes > budget_bytes:
        raise InfeasibleError(f"{candidate.name}: its layout needs {train.placement.arena_bytes} bytes.")
    evaluate = _evaluation(workload, len(problem.tasks.ranges), train.placement.arena_bytes, budget_bytes)
    return Draft(candidate, len(problem.tasks.ranges), train, evaluate, assemble(train, evaluate))


def _part(name: str, problem: Problem, decisions: Decisions) -> Part:
    schedule: Schedule = make_schedule(problem, decisions)
    placement: Placement = place(problem, schedule)
    return Part(name, problem, decisions, schedule, placement)


def _evaluation(workload: Workload, sub_batches: int, arena_bytes: int, budget_bytes: int) -> Part:
    """The evaluation program: the fastest algorithms that fit the arena training needs anyway, else the budget."""
    for limit in (arena_bytes, budget_bytes):
        problem = workload.problem(sub_batches, limit, training=False)
        part = _part("evaluate", problem, apply_passes(problem, (ChooseEach(fastest), FitWorkspaces())))
        if part.placement.arena_bytes <= limit:
            return part
    raise InfeasibleError(f"the evaluation program needs {part.placement.arena_bytes} bytes.")
