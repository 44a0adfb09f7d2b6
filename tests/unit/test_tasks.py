"""Tasks and stretches: how the batch is cut, where barriers stand, who shares memory with whom."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from onnx import helper
from onnx_models import floats, make_model

from planc.errors import UsageError
from planc.onnx_loader import load_model
from planc.ops.spec import BatchRule, TensorKind
from planc.stretches import balanced_ranges, find_stretches
from planc.tasks import Piece, Task, TaskList, make_tasks
from planc.training import make_training_graph
from planc.training_graph import TrainingGraph, TrainingOptions
from planc.zoo import lenet, tiny_residual_cnn, vgg_like


@pytest.mark.parametrize(
    ("batch", "count", "sizes"),
    [(10, 3, [4, 3, 3]), (8, 2, [4, 4]), (5, 5, [1] * 5), (7, 1, [7]), (11, 4, [3, 3, 3, 2])],
)
def test_ranges_are_balanced_and_seamless(batch: int, count: int, sizes: list[int]) -> None:
    ranges = balanced_ranges(batch, count)
    assert [stop - start for start, stop in ranges] == sizes
    assert (ranges[0][0], ranges[-1][1]) == (0, batch)
    assert all(before[1] == behind[0] for before, behind in pairwise(ranges))


@pytest.mark.parametrize("count", [0, -1, 11])
def test_a_count_beyond_the_batch_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"sub-batches {count}: wanted 1 to 10"):
        balanced_ranges(10, count)


def residual(batch: int = 6) -> TrainingGraph:
    return make_training_graph(load_model(tiny_residual_cnn(), batch=batch), TrainingOptions())


def plain(batch: int = 6) -> TrainingGraph:
    return make_training_graph(load_model(lenet(), batch=batch), TrainingOptions())


def op(tasks: TaskList, task: Task) -> str:
    return tasks.launch(task).op


# Order


def test_without_a_barrier_one_sub_batch_goes_all_the_way_through() -> None:
    """Classic gradient accumulation: forward and backward of one sub-batch before the next one begins."""
    assert len(find_stretches(plain())) == 1
    tasks = make_tasks(plain(), 3)
    ranged = [(task.start, task.stop) for task in tasks.tasks if tasks.launch(task).rule is not BatchRule.WHOLE]
    assert ranged == sorted(ranged)
    assert set(ranged) == {(0, 2), (2, 4), (4, 6)}
    updates = [task.index for task in tasks.tasks if tasks.launch(task).phase == "update"]
    assert updates[0] > max(t.index for t in tasks.tasks if (t.start, t.stop) == (2, 4)), (
        "updates wait for the last range"
    )


def test_batch_norm_is_a_barrier() -> None:
    """All ranges of the statistics come before any range is normalised, and likewise in the backward pass."""
    tasks = make_tasks(residual(), 3)
    assert len(find_stretches(residual())) == 1 + 2 * 11
    layers = {tasks.launch(task).layer for task in tasks.tasks if op(tasks, task) == "BatchNormStatistics"}
    assert len(layers) == 11
    for layer in layers:
        own = {
            name: [t.index for t in tasks.tasks if op(tasks, t) == name and tasks.launch(t).layer == layer]
            for name in (
                "BatchNormStatistics",
                "BatchNormFinalize",
                "BatchNormNormalize",
                "BatchNormReduce",
                "BatchNormInputGradient",
            )
        }
        counts = {name: len(indices) for name, indices in own.items()}
        assert counts["BatchNormStatistics"] == counts["BatchNormNormalize"] == counts["BatchNormReduce"] == 3
        assert counts["BatchNormFinalize"] == 1
        assert max(own["BatchNormStatistics"]) < own["BatchNormFinalize"][0] < min(own["BatchNormNormalize"])
        assert max(own["BatchNormReduce"]) < min(own["BatchNormInputGradient"])


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("make", [plain, residual])
def test_values_are_there_when_they_are_read(make: object, count: int) -> None:
    """Of samples [a, b) of a tensor every sample; of a sum every range: that is what makes sub-batches exact."""
    graph = make()  # type: ignore[operator]
    tasks = make_tasks(graph, count)
    done: dict[int, set[int]] = {}
    whole = set(range(graph.batch))
    given = {t.index for t in graph.tensors if t.kind in ("input", "label")} | {p.tensor for p in graph.persistent}
    parts: dict[int, set[int]] = {}
    for task in tasks.tasks:
        launch = tasks.launch(task)
        samples = set(range(task.start, task.stop))
        for tensor in launch.inputs:
            root = graph.root(tensor)
            if root not in given:
                assert done.get(root, set()) >= (samples if graph.spec(tensor).rows else whole), (launch.op, task)
        for tensor in launch.outputs:
            root = graph.root(tensor)
            if not graph.spec(tensor).rows and launch.rule is BatchRule.SUM:
                assert parts.setdefault(root, set()).isdisjoint(samples), "a contribution twice"
                assert task.accumulate == bool(parts[root])
                parts[root] |= samples
                done[root] = parts[root]
            else:
                done[root] = done.get(root, set()) | (samples if graph.spec(tensor).rows else whole)
    assert len(tasks.ranges) == count


def test_one_range_keeps_the_order_of_the_launches() -> None:
    assert [task.launch for task in make_tasks(residual(), 1).tasks] == list(range(len(residual().launches)))


# Memory


def piece_of(tasks: TaskList, tensor: int) -> Piece:
    (found,) = (piece for piece in tasks.pieces if tensor in piece.tensors)
    return found


def small(*nodes: tuple[str, str, str]) -> TaskList:
    """MatMul of x and w to h, then the given (operator, inputs, output), trained on y with mse."""
    made = [helper.make_node("MatMul", ["x", "w"], ["h"], name="matmul")]
    made += [helper.make_node(op, inputs.split(), [output], name=output) for op, inputs, output in nodes]
    weights = {"w": np.ones((5, 5), np.float32)}
    graph = load_model(make_model(made, [floats("x", (4, 5))], weights=weights))
    return make_tasks(make_training_graph(graph, TrainingOptions(loss="mse")), 1)


def tensor_of(tasks: TaskList, label: str, kind: str = "forward") -> int:
    (launch,) = (s for s in tasks.graph.launches if s.label == label and s.phase == kind)
    return launch.outputs[0]


def test_in_place_where_the_input_dies() -> None:
    tasks = small(("Relu", "h", "y"))
    before, behind = tensor_of(tasks, "matmul"), tensor_of(tasks, "y")
    assert piece_of(tasks, before) is piece_of(tasks, behind)
    assert piece_of(tasks, before).tensors == (before, behind)


def test_not_in_place_where_the_input_is_read_again() -> None:
    """By a later node, or by the backward pass (Tanh of h wants h no more, Softplus's gradient reads its input)."""
    later = small(("Relu", "h", "r"), ("Add", "r h", "y"))
    assert piece_of(later, tensor_of(later, "matmul")) is not piece_of(later, tensor_of(later, "r"))
    backward = small(("Softplus", "h", "y"))
    reads = [s for s in backward.graph.launches if s.phase == "backward" and tensor_of(backward, "matmul") in s.inputs]
    assert reads, "the gradient of Softplus reads its input"
    assert piece_of(backward, tensor_of(backward, "matmul")) is not piece_of(backward, tensor_of(backward, "y"))


def test_inputs_parameters_and_kept_values_are_never_overwritten() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="r"), helper.make_node("MatMul", ["r", "w"], ["y"], name="y")]
    model = make_model(nodes, [floats("x", (4, 5))], weights={"w": np.ones((5, 5), np.float32)})
    tasks = make_tasks(make_training_graph(load_model(model), TrainingOptions(loss="mse")), 1)
    for piece in tasks.pieces:
        kinds = [tasks.graph.tensors[tensor].kind for tensor in piece.tensors]
        if any(kind in (TensorKind.INPUT, TensorKind.LABEL) or piece.persistent for kind in kinds):
            assert len(piece.tensors) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_one_accumulated_gradient_a_parameter(count: int) -> None:
    """Field case B5."""
    tasks = make_tasks(make_training_graph(load_model(vgg_like(), batch=6), TrainingOptions()), count)
    gradients = [p for p in tasks.pieces if p.kind is TensorKind.PARAMETER_GRADIENT]
    assert len(gradients) == sum(item.trainable for item in tasks.graph.persistent) == 16
    assert all(len(piece.written) == count for piece in gradients)


def test_what_crosses_a_barrier_is_one_piece_a_sub_batch() -> None:
    tasks = make_tasks(residual(), 3)
    launch = next(s for s in tasks.graph.launches if s.op == "BatchNormNormalize")
    pieces = [p for p in tasks.pieces if launch.outputs[0] in p.tensors]
    assert [(p.start, p.stop) for p in pieces] == [(0, 2), (2, 4), (4, 6)]
    moments = next(s for s in tasks.graph.launches if s.op == "BatchNormStatistics").outputs[0]
    assert [(p.start, p.stop) for p in tasks.pieces if moments in p.tensors] == [(0, 6)]


@pytest.mark.parametrize("count", [1, 3])
def test_pieces_know_their_uses(count: int) -> None:
    tasks = make_tasks(residual(), count)
    uses: dict[int, set[int]] = {}
    for task in tasks.tasks:
        for use in (*task.reads, *task.writes):
            uses.setdefault(use.piece, set()).add(task.index)
            assert 0 <= use.start < use.stop <= tasks.pieces[use.piece].bytes
    for piece in tasks.pieces:
        assert piece.uses == tuple(sorted(uses.get(piece.index, set())))
        if piece.born >= 0:
            assert piece.born == piece.written[0] == piece.uses[0]
