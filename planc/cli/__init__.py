"""The command line: `planc COMMAND`. Reads arguments, calls the library, prints; a command is imported when it is used.

stdout holds the result (text, or JSON with --json), stderr everything else. Exit codes: 0 good, 1 the verdict is bad,
2 bad usage or input, 3 no plan for the budget, 4 a run failed, 70 a bug in planc, 130 interrupted, 141 the reader of
stdout went away.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from planc import __version__
from planc.cli.output import BROKEN_PIPE, discard_stdout, print_usage_error, report_error
from planc.errors import InternalError, PlancError

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("compile", "planc.cli.compile", "Turn a model and a memory budget into a plan."),
    ("compare", "planc.cli.compare", "Set the policies side by side at one budget."),
    ("bounds", "planc.cli.bounds", "Show what a model needs, by what planc may do about it."),
    ("sweep", "planc.cli.sweep", "Plot step time against memory."),
    ("fit", "planc.cli.fit", "Tell on which GPUs a model can be trained, and at what price."),
    ("verify", "planc.cli.verify", "Check that a plan keeps every rule, whatever the timing."),
    ("simulate", "planc.cli.simulate", "Predict a plan's time, stalls and peak memory."),
    ("run", "planc.cli.run", "Train a model by a plan."),
    ("inspect", "planc.cli.inspect", "Show a plan's memory, largest buffers and decisions."),
    ("demo", "planc.cli.demo", "See it work: a small network at half its memory."),
)
"""Name, module (its `command`), and what `planc --help` says of it."""

BUG, INTERRUPTED = InternalError.exit_code, 130

EXAMPLES = """\b
Examples:
  planc demo
  planc compile model.onnx --budget 4GB --batch 64 -o plan.json
  planc verify plan.json
  planc inspect plan.json
  planc compile model.onnx --profile cpu --budget 60% --batch 8 -o cpu.json
  planc run cpu.json --model model.onnx --init random:0 --steps 10

\b
Shell completion (bash; zsh and fish likewise):
  eval "$(_PLANC_COMPLETE=bash_source planc)"
"""


class LazyGroup(click.Group):
    """The commands of COMMANDS, each imported when it is asked for, so that `planc --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, module, _ in COMMANDS:
            if name == cmd_name:
                command: click.Command = import_module(module).command
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, _, summary in COMMANDS])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PlancError as error:
            report_error(ctx, error)
            ctx.exit(error.exit_code)


@click.group(cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planc", message="%(prog)s %(version)s")
def planc() -> None:
    """Compile neural networks into training plans that keep to a memory budget, and run them.

    planc reads an ONNX model and a budget in bytes, and decides offline what stays in device memory, what goes to the
    host meanwhile, which convolution algorithms run, and where every buffer lies. The result is a file that can be
    verified, simulated, inspected and executed.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (None: the process' arguments) and return the exit code."""
    try:
        result: object = planc.main(arguments, prog_name="planc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            print_usage_error(error.format_message())
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("planc: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    except Exception:
        traceback.print_exc()
        click.echo("planc: internal error: this is a bug in planc. Please report it with the lines above.", err=True)
        return BUG
    return result if isinstance(result, int) else 0
