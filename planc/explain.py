"""Explain: what binds a plan, and what more memory or a faster link would buy."""

from __future__ import annotations

from planc.options import Options
from planc.passes.flow_explain import FlowExplanation, explain_flow
from planc.pipeline import Workload
from planc.plan import Plan
from planc.policies import FLOW
from planc.units import format_ns


def explain(workload: Workload, options: Options, plan: Plan) -> FlowExplanation:
    """What binds at the plan's budget and sub-batches, from the relaxation that bounds plans of its class.

    Raises:
        InfeasibleError: no plan of that class fits the budget (the plan is of another).
    """
    count = int(plan.provenance.options["sub_batches"])
    problem = workload.problem(count, plan.spaces.budget_bytes, micro_batches=FLOW.micro_batches)
    return explain_flow(problem, recompute=options.recompute)


def sentences(workload: Workload, plan: Plan, found: FlowExplanation) -> tuple[str, ...]:
    """The explanation in words, one fact a line."""
    count = int(plan.provenance.options["sub_batches"])
    lines = [f"what binds: {found.binds}"]
    parts = (
        ("recomputing", found.recomputing_ns),
        ("slower convolution configurations", found.slower_ns),
        ("waiting for copies", found.waiting_ns),
    )
    spent = ", ".join(f"{name} {format_ns(ns)}" for name, ns in parts if ns > 0)
    lines.append(f"beyond the ideal {format_ns(found.ideal_ns)}: {spent or 'nothing'}")
    if found.tightest_task is not None:
        tasks = workload.tasks(count)
        launch = tasks.launch(tasks.tasks[found.tightest_task])
        lines.append(f"memory is tightest at task {found.tightest_task}, {launch.op} {launch.label!r} ({launch.phase})")
    lines.append(f"10 % more memory would save up to {format_ns(found.more_memory_saves_ns)} a step")
    lines.append(f"a link 10 % faster would save up to {format_ns(found.faster_link_saves_ns)} a step")
    return tuple(lines)
