"""Options that say which model is trained and how: the same for every command that compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from planc.cli.options import FILE, budget, complete_profile, decimal, dimension
from planc.ops.final_loss import LOSSES
from planc.ops.normalization import BATCH_NORMS
from planc.ops.optimizer import OPTIMIZERS
from planc.source import Source

Function = TypeVar("Function", bound=Callable[..., Any])

_SETTINGS = ("lr", "momentum", "weight_decay", "beta1", "beta2", "epsilon")

model_argument = click.argument("model", type=FILE, metavar="MODEL.onnx")
batch_option = click.option(
    "--batch", type=click.IntRange(min=1), help="Samples a training step.  [default: the model's own]"
)
workspace_option = click.option(
    "--workspace", type=budget, metavar="SIZE", help="What the policies ucudnn-wr (a call) and -wd (in all) may use."
)


def profile_option(default: str) -> Callable[[Function], Function]:
    """--profile, one device; None where it is not given."""
    return click.option(
        "--profile", metavar="NAME|FILE", shell_complete=complete_profile, help=f"Device.  [default: {default}]"
    )


def _setting(name: str, text: str) -> Callable[[Function], Function]:
    return click.option(f"--{name.replace('_', '-')}", name, type=decimal, metavar="NUMBER", help=text)


_OPTIONS = (
    click.option(
        "--dim",
        "dims",
        type=dimension,
        metavar="NAME=N",
        multiple=True,
        help="Size of another open dimension; may be repeated.",
    ),
    click.option("--optimizer", type=click.Choice(list(OPTIMIZERS)), default="momentum", show_default=True),
    _setting("lr", "Learning rate; `planc run` may change it.  [default: 0.01]"),
    _setting("momentum", "Of the momentum optimizer.  [default: 0.9]"),
    click.option("--nesterov", is_flag=True, help="Nesterov's variant of momentum."),
    _setting("weight_decay", "[default: 0; adamw: 0.01]"),
    _setting("beta1", "Of adam and adamw.  [default: 0.9]"),
    _setting("beta2", "Of adam and adamw.  [default: 0.999]"),
    _setting("epsilon", "Of adam and adamw.  [default: 1e-08]"),
    click.option(
        "--loss",
        multiple=True,
        metavar="[OUTPUT=]KIND[:WEIGHT]",
        help=f"{', '.join(LOSSES)} or none (a single number), on an output of the model; may be repeated. Settings "
        "follow after commas: axis=, ignore_index=, class_weights=1/2/... of cross_entropy, beta= of smooth_l1.",
    ),
    click.option("--precision", type=click.Choice(["fp32", "fp64"]), default="fp32", show_default=True),
    click.option("--dropout", type=click.Choice(["train", "off"]), default="train", show_default=True),
    click.option(
        "--batch-norm",
        type=click.Choice(list(BATCH_NORMS)),
        default="exact",
        show_default=True,
        help="exact: over the whole batch; per-sub-batch: each by itself, which changes what is trained; "
        "frozen: running statistics as constants.",
    ),
)


def training_options(function: Function) -> Function:
    """Options of the training, which `source_of` takes."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def source_of(model: Path, training: dict[str, Any]) -> Source:
    """The source that `model_argument` and `training_options` describe."""
    settings = [(name, training[name]) for name in _SETTINGS if training[name] is not None]
    if training["nesterov"]:
        settings.append(("nesterov", "1"))
    return Source(
        model=model,
        dims=training["dims"],
        loss=training["loss"],
        optimizer=training["optimizer"],
        settings=tuple(settings),
        precision=training["precision"],
        dropout=training["dropout"] == "train",
        batch_norm=training["batch_norm"],
    )
