"""Matrix products: Gemm and MatMul.

A product is per sample when the batch axis is a row axis of its first operand (or a leading axis of both) and stays in
front. Where the batch axis is contracted or moved (a transposed batch, a Gram matrix) the node is whole-batch.

Launches, with a' and b' the operands after `trans_a` / `trans_b` (swap the last two axes; a vector is a row as first
and a column as second operand):

    Gemm(a, b[, c])  alpha a' b' + beta c, matrices only
    MatMul(a, b)     alpha a' b', leading axes broadcast
    MatMulSum(a, b)  alpha a' b', summed over the leading axes that the output lacks, and over samples
"""

from __future__ import annotations

from math import prod
from types import MappingProxyType

import numpy as np

from planc.graph import Attrs, AttrValue, Node, TensorSpec
from planc.ops.alignment import sum_to
from planc.ops.reading import node_error, present, raw_float_text, raw_input, raw_int
from planc.ops.spec import BatchRule, Builder, Grads, LaunchSpec, OpSpec, RawNode, Reading, Recompute

Shape = tuple[int, ...]
Specs = tuple[TensorSpec | None, ...]


def _emit_product(
    builder: Builder,
    op: str,
    operands: tuple[int, ...],
    spec: TensorSpec,
    *,
    trans: tuple[bool, bool] = (False, False),
    scale: Attrs = MappingProxyType({}),
    whole: bool,
) -> int:
    """Add a product launch; `whole`: the batch axis does not run through it from front to front."""
    attrs: dict[str, AttrValue] = {**scale}
    attrs.update({name: 1 for name, on in zip(("trans_a", "trans_b"), trans, strict=True) if on})
    rule = BatchRule.WHOLE if whole else BatchRule.PER_SAMPLE if spec.rows else BatchRule.SUM
    (result,) = builder.emit(op, operands, (spec,), attrs, rule=rule)
    return result


# Gemm


def _read_gemm(raw: RawNode) -> Reading:
    beta = raw_float_text(raw, "beta", 1.0)
    attrs: dict[str, AttrValue] = {
        "trans_a": int(raw_int(raw, "transA", 0) != 0),
        "trans_b": int(raw_int(raw, "transB", 0) != 0),
        "alpha": raw_float_text(raw, "alpha", 1.0),
        "beta": beta,
    }
    bias = raw_input(raw, 2) if beta != "0" else ""
    return Reading((raw.inputs[0], raw.inputs[1], bias), attrs)


def _infer_gemm(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    a, b = present(specs[0]), present(specs[1])
    c = specs[2]
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise node_error(node, f"found operands of shape {list(a.shape)} and {list(b.shape)}, wanted two matrices.")
    m, k = reversed(a.shape) if node.attrs["trans_a"] else a.shape
    depth, n = reversed(b.shape) if node.attrs["trans_b"] else b.shape
    if k != depth:
        raise node_error(
            node, f"found {k} columns in the first operand and {depth} rows in the second, wanted as many."
        )
    if c is not None and not _broadcasts(c.shape, (m, n)):
        raise node_error(node, f"found C of shape {list(c.shape)}, wanted one that broadcasts to [{m}, {n}].")
    return (TensorSpec((m, n), a.dtype, _gemm_rows(node, a, b, c)),)


def _broadcasts(shape: Shape, target: Shape) -> bool:
    return len(shape) <= len(target) and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(target), strict=False)
    )


def _gemm_rows(node: Node, a: TensorSpec, b: TensorSpec, c: TensorSpec | None) -> int:
    """Rows a sample of the result: those of A, unless A is transposed or B or C bring the batch in another place."""
    if node.attrs["trans_a"] or b.rows:
        return 0
    if c is None:
        return a.rows
    # A C without a batch axis serves every range only if all rows share it.
    aligned = len(c.shape) == 2 and c.rows == a.rows if c.rows else len(c.shape) < 2 or c.shape[0] == 1
    return a.rows if aligned else 0


def _tensors(builder: Builder, node: Node) -> tuple[int, ...]:
    return tuple(builder.tensor(name) for name in node.inputs if name)


def _result(builder: Builder, node: Node) -> TensorSpec:
    """Spec of the node's output."""
    specs = tuple(builder.spec(builder.tensor(name)) if name else None for name in node.inputs)
    infer = _infer_gemm if node.op == "Gemm" else _infer_matmul
    return infer(node, specs, builder.batch)[0]


def _scale(node: Node, *names: str) -> dict[str, AttrValue]:
    """Those of `names` among the factors of the node that are not 1."""
    return {name: node.attrs[name] for name in names if node.attrs[name] != "1"}


def _lower_gemm(builder: Builder, node: Node) -> tuple[int, ...]:
    spec = _result(builder, node)
    result = _emit_product(
        builder,
        "Gemm",
        _tensors(builder, node),
        spec,
        trans=(bool(node.attrs["trans_a"]), bool(node.attrs["trans_b"])),
        scale=_scale(node, "alpha", *(("beta",) if node.inputs[2] else ())),
        whole=not spec.rows,
    )
    builder.define(node.outputs[0], result)
    return ()


def _gradient_gemm(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """With Y = alpha A' B' + beta C: dA' = alpha dY B'^T, dB' = alpha A'^T dY, dC = beta dY summed to C's shape."""
    (dy,) = grads
    if dy is None:
        return (None, None, None)
    name_a, name_b, name_c = node.inputs
    trans_a, trans_b = bool(node.attrs["trans_a"]), bool(node.attrs["trans_b"])
    da = db = None
    if builder.wants(name_a):
        b = builder.tensor(name_b)
        operands, trans = ((b, dy), (trans_b, True)) if trans_a else ((dy, b), (False, not trans_b))
        da = _gemm_operand_gradient(builder, node, name_a, operands, trans)
    if builder.wants(name_b):
        a = builder.tensor(name_a)
        operands, trans = ((dy, a), (True, trans_a)) if trans_b else ((a, dy), (not trans_a, False))
        db = _gemm_operand_gradient(builder, node, name_b, operands, trans)
    return (da, db, _bias_gradient(builder, node, dy) if name_c and builder.wants(name_c) else None)


def _gemm_operand_gradient(
    builder: Builder, node: Node, name: str, operands: tuple[int, int], trans: tuple[bool, bool]
) -> int:
    spec, per_sample = builder.spec(builder.tensor(name)), bool(_result(builder, node).rows)
    op = "MatMulSum" if per_sample and not spec.rows else "Gemm"
    return _emit_product(builder, op, operands, spec, trans=trans, scale=_scale(node, "alpha"), whole=not per_sample)


def _bias_gradient(builder: Builder, node: Node, dy: int) -> int:
    target = builder.spec(builder.tensor(node.inputs[2]))
    total = sum_to(builder, dy, target)
    if node.attrs["beta"] == "1":
        return total
    return builder.emit("Affine", (total,), (target,), {"factor": node.attrs["beta"], "offset": "0"})[0]


# MatMul


def _read_matmul(raw: RawNode) -> Reading:
    return Reading((raw.inputs[0], raw.inputs[1]))


def _matrices(a: TensorSpec, b: TensorSpec) -> tuple[Shape, Shape]:
    """The operands' shapes with a vector made a row (first operand) or a column (second)."""
    return (a.shape if len(a.shape) > 1 else (1, *a.shape)), (b.shape if len(b.shape) > 1 else (*b.shape, 1))


def _leading(node: Node, a: Shape, b: Shape) -> Shape:
    try:
        return np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise node_error(
            node, f"found leading axes {list(a[:-2])} and {list(b[:-2])}, wanted some that broadcast."
        ) from None


def _infer_matmul(node: Node, specs: Specs, batch: int) -> tuple[TensorSpec, ...]:
    a, b = present(specs[0]), present(specs[1])
    if not a.shape or not b.shape:
        raise node_error(node, "found a single number as operand, wanted vectors or matrices.")
    first, second = _matrices(a, b)
    if first[-1] != second[-2]:
        raise node_error(node, f"found shapes {list(a.shape)} and {list(b.shape)}, wanted equal inner sizes.")
    shape = _leading(node, first, second)
    shape += first[-2:-1] if len(a.shape) > 1 else ()
    shape += second[-1:] if len(b.shape) > 1 else ()
    return (TensorSpec(shape, a.dtype, _matmul_rows(a, b)),)


def _matmul_rows(a: TensorSpec, b: TensorSpec) -> int:
    """Rows a sample of the result; 0 if the batch axis of an operand is contracted or does not stay in front."""
    rank = max(len(a.shape), len(b.shape), 2)
    rows = a.rows or b.rows
    for spec, lowest in ((a, 2), (b, 3)):  # axis 0 of a matrix B is contracted
        in_front = len(spec.shape) == rank and rank >= lowest
        if spec.rows and not (in_front and spec.rows == rows):
            return 0
        if not spec.rows and in_front and spec.shape[0] != 1:
            return 0  # one of its rows, or of its leading indices, for each sample: a range would need a part of it
    return rows


def _lower_matmul(builder: Builder, node: Node) -> tuple[int, ...]:
    spec = _result(builder, node)
    result = _emit_product(builder, "MatMul", _tensors(builder, node), spec, whole=not spec.rows)
    builder.define(node.outputs[0], result)
    return ()


def _gradient_matmul(builder: Builder, node: Node, saved: tuple[int, ...], grads: Grads) -> Grads:
    """dA = dY B^T and dB = A^T dY, each summed over the leading axes its operand was broadcast along."""
    (dy,) = grads
    if dy is None:
        return (None, None)
    a, b = _tensors(builder, node)
    first, second = _matrices(builder.spec(a), builder.spec(b))
    result = builder.spec(dy)
    leading = _leading(node, first, second)
    dy = builder.view(dy, TensorSpec((*leading, first[-2], second[-1]), result.dtype, result.rows))
    found: list[int | None] = []
    for name, shape, operands, trans in (
        (node.inputs[0], first, (dy, b), (False, True)),
        (node.inputs[1], second, (a, dy), (True, False)),
    ):
        if not builder.wants(name):
            found.append(None)
            continue
        spec = builder.spec(builder.tensor(name))
        padded = (1,) * (len(leading) + 2 - len(shape)) + shape[:-2]
        summed = padded != leading or (result.rows and not spec.rows)
        op = "MatMulSum" if summed else "MatMul"
        found.append(_emit_product(builder, op, operands, spec, trans=trans, whole=not result.rows))
    return tuple(found)


def product_flops(attrs: Attrs, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> int:
    """2 M N K for each matrix product of the launch."""
    a, b = _matrices(inputs[0], inputs[1])
    m, k = (a[-1], a[-2]) if attrs.get("trans_a") else (a[-2], a[-1])
    n = b[-2] if attrs.get("trans_b") else b[-1]
    return 2 * m * n * k * prod(np.broadcast_shapes(a[:-2], b[:-2]))


_FORWARD = LaunchSpec(flops=product_flops, recompute=Recompute.COSTLY, matrix=True)

OPS: dict[str, OpSpec] = {
    "Gemm": OpSpec(_read_gemm, _infer_gemm, _lower_gemm, _gradient_gemm),
    "MatMul": OpSpec(_read_matmul, _infer_matmul, _lower_matmul, _gradient_matmul),
}
LAUNCHES: dict[str, LaunchSpec] = {
    "Gemm": _FORWARD,
    "MatMul": _FORWARD,
    "MatMulSum": LaunchSpec(sums=True, flops=product_flops, recompute=Recompute.NEVER, matrix=True),
}
