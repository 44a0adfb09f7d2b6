"""Graph -> TrainingGraph: the training step, and the evaluation program beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from planc.errors import InternalError, ModelError, UsageError
from planc.gradient_flow import GradientFlow
from planc.graph import Graph, Node
from planc.graph_builder import GraphBuilder
from planc.losses import LossChoice, choose_losses
from planc.ops import OPS
from planc.ops.final_loss import LOSSES
from planc.ops.optimizer import OPTIMIZERS
from planc.ops.spec import BatchRule, TensorKind
from planc.training_graph import BACKWARD, UPDATE, TrainingGraph, TrainingOptions


def make_training_graph(graph: Graph, options: TrainingOptions) -> TrainingGraph:
    """The training step of `graph`: forward, loss, backward, and each update as early as it may run.

    Raises:
        ModelError: an operator between a parameter and the loss has no gradient, or nothing is left to train.
        UsageError: the loss is ambiguous or does not fit the output.
    """
    settings = optimizer_settings(options)
    choices = choose_losses(graph, options.loss)
    flow = GradientFlow.of(graph, choices)
    if not flow.trainable:
        raise ModelError(
            "the model has no trainable parameter on a path to the loss.",
            "Check --loss, or whether the weights are floating-point tensors of the file.",
        )
    slots = OPTIMIZERS[options.optimizer].slots
    builder = GraphBuilder(graph, flow, training=True, dropout=options.dropout, slots=slots)
    saved = builder.forward(flow.on_path)
    loss, seeds = _attach_losses(builder, choices)
    backpropagate(builder, flow, saved, seeds, options.optimizer, settings)
    return builder.finish(choices, loss, (), {"name": options.optimizer, **settings})


def make_evaluation_graph(graph: Graph, options: TrainingOptions) -> TrainingGraph:
    """The model as it is used: running statistics, dropout off, nothing saved; outputs and the loss.

    The optimizer's state is there too, untouched, so that both programs agree on what stays in the arena.
    """
    settings = optimizer_settings(options)
    choices = choose_losses(graph, options.loss)
    slots = OPTIMIZERS[options.optimizer].slots
    builder = GraphBuilder(graph, GradientFlow.of(graph, choices), training=False, dropout=False, slots=slots)
    builder.forward(frozenset(range(len(graph.nodes))))
    loss, _ = _attach_losses(builder, choices)
    return builder.finish(choices, loss, graph.outputs, {"name": options.optimizer, **settings})


def optimizer_settings(options: TrainingOptions) -> dict[str, str]:
    """Every setting of the chosen optimizer, defaults filled in, as decimal text.

    Raises:
        UsageError: the optimizer is unknown or does not have a setting that was given.
    """
    spec = OPTIMIZERS.get(options.optimizer)
    if spec is None:
        raise UsageError(f"optimizer {options.optimizer!r}: unknown.", f"Use one of: {', '.join(OPTIMIZERS)}.")
    settings = {"lr": "0.01", **spec.settings}
    for name, value in options.settings.items():
        if name not in settings:
            known = ", ".join(sorted(settings))
            raise UsageError(f"optimizer {options.optimizer!r} has no setting {name!r}.", f"It has: {known}.")
        if not isinstance(value, str):
            raise UsageError(f"{name} {value!r}: wanted decimal text.", f"Write {str(value)!r}.")
        settings[name] = value
    return settings


Seeds = tuple[tuple[str, int], ...]


def _attach_losses(builder: GraphBuilder, choices: Sequence[LossChoice]) -> tuple[int, Seeds]:
    """Add the losses; returns the tensor of their sum and, when training, the gradients sent back by forward name."""
    builder.layer, builder.label = len(builder.graph.nodes), "loss"
    attached = []
    for choice in choices:
        name = "labels" if len(choices) == 1 else f"labels_{choice.output}"
        attached.append(_attach_loss(builder, choice, name))
    total = attached[0][0]
    for loss, _ in attached[1:]:
        (total,) = builder.emit("Add", (total, builder.view(loss, builder.spec(total))), (builder.spec(total),))
    if not builder.training:
        return total, ()
    builder.phase, builder.kind = BACKWARD, TensorKind.GRADIENT
    seeds: dict[str, int] = {}
    for choice, (_, send) in zip(choices, attached, strict=True):
        seed = send()
        if choice.scores in seeds:
            (seed,) = builder.emit("Add", (seeds[choice.scores], seed), (builder.spec(seed),))
        seeds[choice.scores] = seed
    return total, tuple(seeds.items())


def _attach_loss(builder: GraphBuilder, choice: LossChoice, name: str) -> tuple[int, Callable[[], int]]:
    """A loss, and what adds its gradient. Labels, if it takes any, are the input `name`."""
    scores = builder.tensor(choice.scores)
    spec, weight = builder.spec(scores), choice.form.weight
    if choice.kind == "none":
        loss = scores
        if weight != "1":
            (loss,) = builder.emit("Affine", (scores,), (spec,), {"factor": weight, "offset": "0"})
        return loss, lambda: builder.emit("Fill", (), (spec,), {"value": weight}, rule=BatchRule.WHOLE)[0]
    kind = LOSSES[choice.kind]
    labels = builder.add_labels(name, kind.labels(spec, choice.form))
    value, saved = kind.lower(builder, scores, labels, choice.form)
    return value, lambda: kind.gradient(builder, scores, labels, choice.form, saved)


def backpropagate(
    builder: GraphBuilder,
    flow: GradientFlow,
    saved: Mapping[int, tuple[int, ...]],
    seeds: Seeds,
    optimizer: str,
    settings: Mapping[str, str],
) -> dict[str, int]:
    """Emit the gradients of the nodes in reverse, and each update once nothing later in the step reads its parameter.

    Returns the gradients of the values that are neither computed by a node nor trained.
    """
    graph = builder.graph
    gradients = dict(seeds)
    readers = Counter(name for position in saved for name in set(graph.nodes[position].inputs))
    for position in sorted(saved, reverse=True):
        node = graph.nodes[position]
        builder.layer, builder.label = position, node.name
        builder.phase, builder.kind = BACKWARD, TensorKind.GRADIENT
        received = tuple(gradients.pop(name, None) for name in node.outputs)
        gradient = OPS[node.op].gradient
        if gradient is not None and any(g is not None for g in received):
            _spread(builder, gradients, node, gradient(builder, node, saved[position], received))
        for name in dict.fromkeys(node.inputs):
            readers[name] -= 1
            if not readers[name] and name in flow.trainable:
                _update(builder, name, gradients.pop(name, None), optimizer, settings)
    return gradients


def _spread(builder: GraphBuilder, gradients: dict[str, int], node: Node, found: tuple[int | None, ...]) -> None:
    """Add the gradients of a node's inputs to what these have so far."""
    for name, gradient in zip(node.inputs, found, strict=True):
        if gradient is None or not builder.wants(name):
            continue
        if name in gradients:
            spec = builder.spec(gradient)
            (gradient,) = builder.emit("Add", (gradients[name], gradient), (spec,))
        gradients[name] = gradient


def _update(
    builder: GraphBuilder, name: str, gradient: int | None, optimizer: str, settings: Mapping[str, str]
) -> None:
    if gradient is None:
        raise InternalError(f"parameter {name!r} is trainable but got no gradient")
    builder.mark(gradient, TensorKind.PARAMETER_GRADIENT)
    builder.phase = UPDATE
    parameter = builder.tensor(name)
    states = builder.states[parameter]
    attrs = {key: value for key, value in settings.items() if key != "lr"}
    targets = (parameter, *states)
    builder.overwrite(OPTIMIZERS[optimizer].launch, (parameter, gradient, *states), targets, attrs)
