"""What binds a budget: where the time beyond the ideal goes, which task memory is tightest at, what more would buy.

All of it speaks of the relaxation of the flow program (flow_model.py), whose optimum bounds every plan of its class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planc.errors import InfeasibleError
from planc.passes.base import Problem
from planc.passes.flow_milp import relaxation
from planc.passes.flow_model import UNIT, build_program
from planc.passes.flow_phases import gather_facts
from planc.passes.recipes import find_recipes

MORE = 1.1
"""Of memory, and of the link: what ten percent would buy."""


@dataclass(frozen=True, slots=True)
class FlowExplanation:
    """Times in ns; the first four add up to `bound_ns`, up to rounding.

    ideal_ns: all tasks at their fastest. recomputing_ns, slower_ns, waiting_ns: what recomputation, slower convolution
    configurations and waiting for the link add to it.
    tightest_task: the task (or that before which a recipe runs) where a byte of memory is worth most; None: memory does
    not bind. ns_per_mib: what a MiB more would save if there were one more there alone.
    more_memory_saves_ns, faster_link_saves_ns: by how much the bound falls with 10 % more of it.
    """

    ideal_ns: int
    recomputing_ns: int
    slower_ns: int
    waiting_ns: int
    bound_ns: int
    tightest_task: int | None
    ns_per_mib: int
    more_memory_saves_ns: int
    faster_link_saves_ns: int

    @property
    def binds(self) -> str:
        """compute: the ideal is reached; link: a faster one saves more than memory; else memory."""
        if self.tightest_task is None or self.bound_ns <= self.ideal_ns:
            return "compute"
        return "link" if self.faster_link_saves_ns > self.more_memory_saves_ns else "memory"


def explain_flow(problem: Problem, *, recompute: str = "any") -> FlowExplanation:
    """Explain a budget.

    Raises:
        InfeasibleError: no plan of the class fits it.
    """
    recipes = find_recipes(problem, recompute)
    facts = gather_facts(problem, recipes)
    flow = build_program(problem, facts)
    solved = relaxation(flow.program)
    if solved is None:
        raise InfeasibleError(f"no plan that offloads or recomputes once fits {problem.budget_bytes} bytes.")
    objective, values, prices = solved

    def spent_ns(columns: list[int]) -> int:
        return round(sum(flow.program.cost[column] * float(values[column]) for column in columns) / UNIT)

    worth: dict[int, float] = {}
    for row, task in flow.memory_rows:
        worth[task] = worth.get(task, 0.0) - float(prices[row])
    tightest = max(worth, key=lambda task: (worth[task], -task), default=None)
    price = 0.0 if tightest is None else worth[tightest]

    def saved_ns(other: tuple[float, object, object] | None) -> int:
        return 0 if other is None else max(0, round((objective - other[0]) / UNIT))

    roomy = replace(problem, budget_bytes=int(problem.budget_bytes * MORE))
    return FlowExplanation(
        ideal_ns=round(flow.program.cost[0] / UNIT),
        recomputing_ns=spent_ns([column for columns in flow.rebuilt for column in columns.values()]),
        slower_ns=spent_ns([column for columns in flow.options.values() for column in columns]),
        waiting_ns=spent_ns(list(flow.waits)),
        bound_ns=round(objective / UNIT),
        tightest_task=tightest if price > 0 else None,
        ns_per_mib=round(price * 2**20),
        more_memory_saves_ns=saved_ns(relaxation(build_program(roomy, gather_facts(roomy, recipes)).program)),
        faster_link_saves_ns=saved_ns(relaxation(build_program(problem, facts, link_factor=MORE).program)),
    )
