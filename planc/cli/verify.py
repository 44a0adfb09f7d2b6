"""`planc verify`: does a plan keep every rule of its format?"""

from __future__ import annotations

from pathlib import Path

import click

from planc.cli.options import json_option, plan_argument
from planc.cli.output import print_json, print_lines
from planc.errors import VerificationError
from planc.plan_json import read_plan
from planc.verify import Violation, verify

EXAMPLES = """\b
Examples:
  planc verify plan.json
  planc verify plan.json --json
"""


@click.command("verify", epilog=EXAMPLES)
@plan_argument
@json_option
@click.pass_context
def command(ctx: click.Context, plan: Path, as_json: bool) -> tuple[Violation, ...]:
    """Check that a plan keeps every rule, whatever the timing.

    From lanes and waits alone it derives what may overlap, and finds reads of bytes that are not there yet, memory
    given away too early, sums that miss a part, and the like. Exit code 1: the plan breaks a rule.
    """
    violations = verify(read_plan(plan))
    if as_json:
        print_json({"violations": [_document(violation) for violation in violations]})
    elif violations:
        print_lines(*(line(violation) for violation in violations), f"{len(violations)} violation(s)")
    else:
        print_lines("ok")
    if violations:
        ctx.exit(VerificationError.exit_code)
    return violations


def line(violation: Violation) -> str:
    """A violation for people."""
    return f"{violation.code}: {violation.message}"


def _document(violation: Violation) -> dict[str, object]:
    return {
        "code": violation.code,
        "message": violation.message,
        "steps": list(violation.steps),
        "buffers": list(violation.buffers),
    }
