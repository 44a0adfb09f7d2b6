"""Verifier: does a plan keep every rule of its format, whatever the timing?

From lanes, orders and waits alone it derives which steps have ended when another starts, and judges memory and data by
that (README, "The plan file"). It shares the plan's data types with the compiler and nothing else: its arithmetic is
its own, and no mistake of a pass, a schedule or a layout can be repeated here.
"""

from __future__ import annotations

from planc.happens_before import HappensBefore
from planc.plan import Plan
from planc.verify_data import DataFlow
from planc.verify_form import check_form
from planc.verify_memory import check_memory, check_spaces
from planc.verify_model import check_model, given_buffers
from planc.verify_pages import check_pages
from planc.verify_report import CODES, Report, Violation
from planc.verify_training import check_evaluation, check_homes, check_outputs, check_sums, check_training

__all__ = ["CODES", "Violation", "verify"]


def verify(plan: Plan) -> tuple[Violation, ...]:
    """Every rule that `plan` breaks; empty: none. Takes time about proportional to the plan, and never raises.

    A plan whose form is broken (ids, references, ranges, sizes) gets the violations of form only.
    """
    form = check_form(plan) or check_model(plan)
    if form:
        return form
    found = dict.fromkeys(check_spaces(plan))
    for program in plan.programs:
        found |= _verify_program(plan, program)
    return tuple(found)


def _verify_program(plan: Plan, program: str) -> dict[Violation, None]:
    report = Report(plan, program)
    order = HappensBefore(plan.programs[program].steps)
    uses = check_memory(report, order)
    check_pages(report, order, uses)
    flow = DataFlow(report, order, given_buffers(plan, program))
    flow.follow(uses)
    check_sums(report, flow)
    check_outputs(report, flow)
    check_homes(report, flow)
    if program == "train":
        check_training(report)
    else:
        check_evaluation(report)
    return report.found
