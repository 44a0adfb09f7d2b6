"""What goes wrong for people who do this job, one test a case, by its id: reading models in this file, the
rest in test_field_cases_plans; "here" below is either of them. Cases that other files test by themselves:

A1, A2   test_onnx_constants: inference exports; batch norm of every opset, one rule; test_normalization: frozen nodes
A3, A4   test_training: parameters_statistics_and_literals, what_is_frozen_says_why; here: a rank-3 output
A5       test_onnx_constants: weights_count_the_same_wherever_they_stand; here: in the plan's bytes
A6       test_training: a_weight_used_twice; here: its gradient is the sum
A7, A8   test_onnx_loader: initializers_that_are_also_inputs, batch_is_rebound, unknown_batch, no_saved_shape_is_trusted
A9       test_reading: reshape_targets_follow_the_batch; here: whole models, and one that cannot be
A10      test_onnx_constants: shape_arithmetic_is_folded_at_the_new_batch; here: no device bytes
A13, A14 test_onnx_loader: labels_are_unique, nodes_out_of_order, broken_wiring
A15, A18 test_onnx_refusals: newer_ir_alone, opsets_from_seven, quantised_model
A17      test_onnx_refusals: all_missing_operators; test_training: operators_without_a_gradient
A19      test_dropout: ratio 0, backward_reads_nothing_but_the_gradient; test_training: dropout_can_be_left_out
A20      test_conv_reading, test_pooling, test_conv_algorithms: cudnn_pads_asymmetrically; here: a whole model
A24      test_onnx_loader: twenty_thousand_nodes; here: on to tasks
A25      test_training: a_loss_that_is_ambiguous, an_unused_output
B4       test_bounds: optimizer_state_is_counted_from_the_first_step; test_field_cases_plans
B5       test_tasks: one_accumulated_gradient_a_parameter
B6, B7   test_sub_batches
C1, C2   test_wait_removal, test_verify: every_wait_that_orders_something_is_missed
C5       here; test_executor: every_array_is_a_view_at_its_planned_offset
D1       test_passes: a_workspace_is_chosen_against_what_is_live_at_its_step
D2, D5   test_costs; here: what the plan records
E3       test_light_models; here: on a small model
F4, F5   test_plan_json: newer, foreign, old and damaged schemas; test_session, test_cli: a_plan_of_another_model
G1, G2   test_units: sizes; test_cli: exit codes
"""

from __future__ import annotations

from time import process_time
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import floats, make_model, model_path, weight_model
from trainings import compiled, workload

from planc.candidates import compile_workload
from planc.errors import ModelError
from planc.onnx_loader import load_model
from planc.options import Options
from planc.pipeline import Workload
from planc.plan import BufferKind, Plan
from planc.profile import load_profile
from planc.runtime.data import random_batch, wanted
from planc.session import Session
from planc.tasks import make_tasks
from planc.training import make_training_graph
from planc.training_graph import TrainingOptions

CPU = load_profile("cpu")


def plan_of(model: onnx.ModelProto, loss: str | None = None, *, batch: int | None = None, **options: Any) -> Plan:
    graph = load_model(model, batch=batch, precision="fp64")
    work = Workload.of(graph, TrainingOptions(loss=loss, **options), CPU)
    return compile_workload(work, Options(policy="keep-all"))


def one_step(model: onnx.ModelProto, loss: str | None, **options: Any) -> tuple[Session, dict[str, Any]]:
    """A session after one step in float64, and the batch."""
    graph = load_model(model, precision="fp64")
    plan = compile_workload(Workload.of(graph, TrainingOptions(loss=loss, **options), CPU), Options(policy="keep-all"))
    session = Session(plan, graph)
    batch = dict(random_batch(wanted(plan), 0))
    session.step(batch)
    return session, batch


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# Reading


def test_a4_a_rank_3_output_with_cross_entropy() -> None:
    """(batch, classes, positions): the loss is the mean over batch and positions."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    model = make_model([node], [floats("x", (4, 6, 3))], weights={"w": normal(3, 5)})
    graph = load_model(model, precision="fp64")
    options = TrainingOptions(loss="y=cross_entropy")
    plan = compile_workload(Workload.of(graph, options, CPU), Options(policy="keep-all"))
    session = Session(plan, graph)
    batch = random_batch(wanted(plan), 0)
    assert batch["labels"].shape == (4, 5)
    scores = batch["x"] @ normal(3, 5).astype(np.float64)
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    chosen = np.take_along_axis(shifted / shifted.sum(1, keepdims=True), batch["labels"][:, None, :], 1)
    assert session.step(batch) == pytest.approx(-np.log(chosen).mean(), rel=1e-12)


@pytest.mark.parametrize("kind", ["initializer", "Constant", "ConstantOfShape"])
def test_a5_weights_take_bytes_wherever_they_stand(kind: str) -> None:
    plan = plan_of(weight_model(kind), "mse")
    sizes = {k: sum(b.bytes for b in plan.buffers if b.kind is k) for k in (BufferKind.PARAMETER, BufferKind.STATE)}
    assert sizes == {BufferKind.PARAMETER: 8 * 12, BufferKind.STATE: 8 * 12}


def test_a6_the_gradient_of_a_tied_weight_is_the_sum_over_its_uses() -> None:
    """w is read as it is and through a Transpose; the reference is the difference quotient of the loss."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="embed"),
        helper.make_node("Sigmoid", ["h"], ["s"], name="squash"),
        helper.make_node("Transpose", ["w"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["s", "t"], ["y"], name="head"),
    ]
    model = make_model(nodes, [floats("x", (4, 3))], weights={"w": normal(3, 5)})
    session, batch = one_step(model, "mse", optimizer="sgd", settings={"lr": "1"})
    found = normal(3, 5) - session.values()["w"]

    def loss(w: np.ndarray[Any, Any]) -> float:
        y = 1 / (1 + np.exp(-batch["x"] @ w)) @ w.T
        return float(((y - batch["labels"]) ** 2).mean())

    step = 1e-5
    for index in np.ndindex(3, 5):
        high, low = normal(3, 5).astype(np.float64), normal(3, 5).astype(np.float64)
        high[index] += step
        low[index] -= step
        quotient = (loss(high) - loss(low)) / (2 * step)
        # the quotient errs by about step^2, and by 1e-16 / step
        assert found[index] == pytest.approx(quotient, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["light_bvlc_alexnet", "light_shufflenet", "light_vgg19"])
def test_a9_a_baked_in_batch_gives_a_plan_with_the_right_sizes(name: str) -> None:
    """Files saved at batch 1, with Reshape targets that say so."""
    one, five = (load_model(model_path(name), batch=batch) for batch in (1, 5))
    for tensor, spec in five.tensors.items():
        if spec.rows:
            assert spec.bytes == 5 * one.tensors[tensor].bytes, tensor


def test_a9_a_target_that_cannot_follow_is_an_error_that_names_the_node() -> None:
    """(2, 6) -> (3, 4): the batch is mixed with other axes, and no other batch has a meaning."""
    weights = {"target": np.array([3, 4]), "w": normal(4, 5)}
    nodes = [
        helper.make_node("Reshape", ["x", "target"], ["h"], name="fold"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="dense"),
    ]
    model = make_model(nodes, [floats("x", (2, 6))], weights=weights)
    with pytest.raises(ModelError, match="'fold'"):
        load_model(model, batch=5)


def test_a10_shape_arithmetic_takes_no_device_bytes_and_no_step() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="dense"),
        helper.make_node("Shape", ["h"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "zero"], ["n"], name="gather"),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"], name="unsqueeze"),
        helper.make_node("Concat", ["n1", "rest"], ["target"], name="concat", axis=0),
        helper.make_node("Reshape", ["h", "target"], ["y"], name="reshape"),
    ]
    integers = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    model = make_model(nodes, [floats("x", ("N", 3))], weights={"w": normal(3, 6), **integers})
    plain = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")],
        [floats("x", ("N", 3))],
        weights={"w": normal(3, 6)},
    )
    found, wanted_plan = plan_of(model, "mse", batch=4), plan_of(plain, "mse", batch=4)
    assert [step.op for step in found.train.steps] == [step.op for step in wanted_plan.train.steps]
    assert found.spaces.arena_bytes == wanted_plan.spaces.arena_bytes


def test_a19_dropout_costs_no_mask_and_evaluates_as_identity() -> None:
    """The mask is drawn again from its seed in the backward pass: no buffer holds it."""
    plan = compiled(workload("vgg_like", batch=4), policy="keep-all")
    dropped = [step for step in plan.train.steps if "Dropout" in step.op]
    assert len(dropped) == 2
    kinds = {plan.buffers[a.buffer].kind for step in dropped for a in (*step.reads, *step.writes)}
    assert kinds <= {BufferKind.ACTIVATION, BufferKind.GRADIENT}
    assert all(plan.tensors[a.tensor].dtype == "float32" for step in dropped for a in (*step.reads, *step.writes))
    assert not any("Dropout" in step.op for step in plan.evaluate.steps)


def test_a20_asymmetric_pads_dilation_and_even_kernels_from_file_to_step() -> None:
    attrs = {"kernel_shape": [2, 4], "strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]}
    conv = helper.make_node("Conv", ["x", "w"], ["h"], name="conv", **attrs)
    same = helper.make_node("Conv", ["h", "v"], ["y"], name="same", auto_pad="SAME_LOWER", kernel_shape=[2, 2])
    weights = {"w": normal(3, 2, 2, 4), "v": normal(2, 3, 2, 2)}
    model = make_model([conv, same], [floats("x", (4, 2, 7, 9))], weights=weights)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inferred.value_info}
    shapes["y"] = tuple(d.dim_value for d in inferred.output[0].type.tensor_type.shape.dim)
    graph = load_model(model)
    assert {name: graph.tensors[name].shape for name in ("h", "y")} == {name: shapes[name] for name in ("h", "y")}
    session, batch = one_step(model, "mse", optimizer="sgd")
    reference = onnx.reference.ReferenceEvaluator(model)
    untrained = Session(session.plan, load_model(model, precision="fp64")).evaluate(batch).outputs["y"]
    (outputs,) = reference.run(None, {"x": batch["x"].astype(np.float32)})
    np.testing.assert_allclose(untrained, outputs, rtol=1e-4, atol=1e-4)  # the reference computes in float32


def chain(count: int) -> onnx.ModelProto:
    """A dense layer and `count` operators in a row behind it."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t0"], name="dense")]
    for i in range(count):
        op = ("Relu", "Sigmoid", "Tanh")[i % 3]
        nodes.append(helper.make_node(op, [f"t{i}"], ["y" if i == count - 1 else f"t{i + 1}"], name=f"n{i}"))
    return make_model(nodes, [floats("x", (2, 3))], weights={"w": normal(3, 2)})


def seconds(count: int) -> float:
    model = chain(count)
    start = process_time()
    graph = load_model(model)
    tasks = make_tasks(make_training_graph(graph, TrainingOptions(loss="mse")), 2)
    assert len(tasks.tasks) >= 4 * count
    return process_time() - start


def test_a24_twenty_thousand_nodes_in_about_linear_time() -> None:
    """No recursion limit; four times the nodes may take eight times as long, and a quadratic step takes sixteen."""
    assert seconds(20_000) < 8 * max(seconds(5_000), 0.2)
