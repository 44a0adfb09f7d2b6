"""Rows of the operator table: shapes, slices, reductions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from case import Case, Shape


def _ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def _reshape(form: str, shape: Shape, target: Shape, result: Shape, opset: int = 13, **attrs: Any) -> Case:
    return Case(
        f"Reshape-{form}",
        "Reshape",
        opset,
        {"x": shape},
        lambda t: t["x"].reshape(result),
        constants={"shape": _ints(*target)},
        attrs=attrs,
    )


def _axes(op: str, form: str, opset: int, shape: Shape, axes: Shape | None, result: Shape) -> Case:
    """Squeeze and Unsqueeze, with axes as an attribute before opset 13, as an input since."""
    return Case(
        f"{op}-{form}",
        op,
        opset,
        {"x": shape},
        lambda t: t["x"].reshape(result),
        constants={"axes": _ints(*axes)} if axes is not None and opset >= 13 else {},
        attrs={"axes": axes} if axes is not None and opset < 13 else {},
    )


def _flatten(form: str, opset: int, shape: Shape, result: Shape, **attrs: Any) -> Case:
    return Case(f"Flatten-{form}", "Flatten", opset, {"x": shape}, lambda t: t["x"].reshape(result), attrs=attrs)


def _transpose(form: str, shape: Shape, perm: Shape, opset: int = 13) -> Case:
    return Case(
        f"Transpose-{form}", "Transpose", opset, {"x": shape}, lambda t: t["x"].permute(perm), attrs={"perm": perm}
    )


_VIEWS = (
    _reshape("rows", (5, 6, 2), (-1, 3, 4), (5, 3, 4)),
    _reshape("copied", (5, 6, 2), (0, 4, -1), (5, 4, 3), opset=7),
    _reshape("many-rows", (5, 6, 2), (-1, 2), (30, 2)),
    _reshape("batch-spread", (6, 6, 2), (4, -1), (4, 18)),
    _reshape("batch-lost", (5, 6), (1, 30), (1, 30)),
    _reshape("allowzero", (5, 6, 2), (5, 12), (5, 12), opset=14, allowzero=1),
    _flatten("default", 13, (5, 3, 2), (5, 6)),
    _flatten("rows", 9, (5, 3, 2), (15, 2), axis=2),
    _flatten("one-row", 13, (5, 3, 2), (1, 30), axis=0),
    _flatten("from-behind", 11, (5, 3, 2), (15, 2), axis=-1),
    _axes("Squeeze", "attribute", 11, (5, 1, 3, 1), (1, 3), (5, 3)),
    _axes("Squeeze", "input", 13, (5, 1, 3, 1), (-1,), (5, 1, 3)),
    _axes("Squeeze", "all", 13, (5, 1, 3, 1), None, (5, 3)),
    _axes("Unsqueeze", "attribute", 7, (5, 3), (1, 3), (5, 1, 3, 1)),
    _axes("Unsqueeze", "input", 13, (5, 3), (-1, 1), (5, 1, 3, 1)),
    _axes("Unsqueeze", "in-front", 13, (5, 3), (0,), (1, 5, 3)),
    _transpose("samples", (5, 3, 2, 4), (0, 2, 3, 1)),
    _transpose("batch-moves", (5, 3, 2), (1, 0, 2), opset=7),
    _transpose("ones-only", (5, 3, 1, 1), (0, 2, 3, 1)),
    Case("Transpose-reversed", "Transpose", 13, {"x": (5, 3, 2)}, lambda t: t["x"].permute(2, 1, 0)),
)


def _concat(form: str, inputs: Mapping[str, Shape], axis: int, weights: Mapping[str, Shape] | None = None) -> Case:
    def torch(t: dict[str, Any]) -> Any:
        import torch

        return torch.cat([t[name] for name in (*inputs, *(weights or {}))], axis)

    return Case(f"Concat-{form}", "Concat", 13, inputs, torch, weights=weights or {}, attrs={"axis": axis})


def _split(form: str, opset: int, sizes: Shape, axis: int, given: bool = True, **attrs: Any) -> Case:
    return Case(
        f"Split-{form}",
        "Split",
        opset,
        {"x": (6, 7, 2)},
        lambda t: t["x"].split(sizes, axis),
        constants={"split": _ints(*sizes)} if given and opset >= 13 else {},
        attrs={"axis": axis, **attrs, **({"split": sizes} if given and opset < 13 else {})},
        outputs=len(sizes),
    )


def _slice(form: str, opset: int, torch: Any, starts: Shape, ends: Shape, axes: Shape = (), steps: Shape = ()) -> Case:
    arguments = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    given = {name: values for name, values in arguments.items() if values}
    return Case(
        f"Slice-{form}",
        "Slice",
        opset,
        {"x": (5, 6, 7)},
        torch,
        constants={name: _ints(*values) for name, values in given.items()} if opset >= 10 else {},
        attrs=given if opset < 10 else {},
        order=("x", *(name if name in given else "" for name in arguments)) if opset >= 10 else (),
    )


def _pad(form: str, opset: int, pads: Shape, *, mode: str = "constant", value: float = 0.0, axes: Shape = ()) -> Case:
    """Padding of the last two of four axes in PyTorch's order (innermost first), or of all of them when constant."""
    before, behind = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    places = axes or tuple(range(4))
    by_axis = dict(zip(places, zip(before, behind, strict=True), strict=True))
    order = [by_axis.get(axis, (0, 0)) for axis in (3, 2, 1, 0)]
    used = order if mode == "constant" else order[:2]

    def torch(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        name = {"edge": "replicate"}.get(mode, mode)
        flat = [pad for pair in used for pad in pair]
        return functional.pad(t["x"], flat, name, value) if mode == "constant" else functional.pad(t["x"], flat, name)

    inputs: dict[str, Any] = {"pads": _ints(*pads), "value": np.array(value), "axes": _ints(*axes)}
    if not axes:
        del inputs["axes"]
    as_inputs = opset >= 11
    return Case(
        f"Pad-{form}",
        "Pad",
        opset,
        {"x": (5, 3, 4, 5)},
        torch,
        constants=inputs if as_inputs else {},
        attrs={"mode": mode} if as_inputs else {"mode": mode, "pads": pads, "value": value},
        gradients=("x",),
        reference=min(pads) >= 0,
    )


_PARTS = (
    _concat("channels", {"a": (5, 2, 3), "b": (5, 4, 3), "c": (5, 1, 3)}, 1),
    _concat("last", {"a": (5, 2), "b": (5, 4)}, -1),
    _concat("one", {"a": (5, 2)}, 1),
    _concat("batch", {"a": (5, 2), "b": (5, 2)}, 0),
    _concat("weight", {"a": (5, 2)}, 1, {"w": (5, 3)}),
    _split("attribute", 11, (3, 4), 1),
    _split("input", 13, (1, 2, 4), 1),
    _split("equal", 7, (1, 1), 2, given=False),
    _split("num-outputs", 18, (3, 3, 1), 1, given=False, num_outputs=3),
    _split("batch", 13, (2, 4), 0),
    _slice("attributes", 7, lambda t: t["x"][:, 1:4, 2:], (1, 2), (4, 1000), (1, 2)),
    _slice("from-behind", 9, lambda t: t["x"][..., 2:6], (-5,), (-1,), (2,)),
    _slice("inputs", 13, lambda t: t["x"][:, 1:4, 2:7], (1, 2), (4, 2**31 - 1), (1, 2)),
    _slice("steps", 10, lambda t: t["x"][:, ::2, 1::3], (0, 1), (6, 7), (1, 2), (2, 3)),
    _slice("backwards", 13, lambda t: t["x"].flip(2)[..., ::2], (-1,), (-(2**31),), (2,), (-2,)),
    _slice("all-axes", 13, lambda t: t["x"][:, 1:, :3], (0, 1, 0), (5, 6, 3)),
    _slice("batch", 13, lambda t: t["x"][1:3], (1,), (3,), (0,)),
    _pad("attributes", 7, (0, 0, 1, 2, 0, 0, 0, 3), value=0.5),
    _pad("inputs", 13, (0, 1, 1, 2, 0, 0, 2, 1), value=-2.0),
    _pad("axes", 18, (1, 2, 0, 1), axes=(3, 1)),
    _pad("crop", 13, (0, 0, -1, 2, 0, 0, 1, -2)),
    _pad("batch", 13, (1, 0, 0, 0, 2, 0, 0, 0), value=1.5),
    _pad("nothing", 13, (0,) * 8),
    _pad("reflect", 13, (0, 0, 2, 1, 0, 0, 3, 4), mode="reflect"),
    _pad("edge", 10, (0, 0, 2, 1, 0, 0, 1, 6), mode="edge"),
)


def _reduce(op: str, form: str, opset: int, axes: Shape | None, keepdims: int = 1, **attrs: Any) -> Case:
    as_input = opset >= (13 if op == "ReduceSum" else 18)

    def torch(t: dict[str, Any]) -> Any:
        places = tuple(range(3)) if axes is None else axes
        if not places:
            return t["x"] * 1.0
        function = t["x"].sum if op == "ReduceSum" else t["x"].mean
        return function(places, keepdim=bool(keepdims))

    return Case(
        f"{op}-{form}",
        op,
        opset,
        {"x": (5, 3, 4)},
        torch,
        constants={"axes": _ints(*axes)} if axes is not None and as_input else {},
        attrs={"keepdims": keepdims, **attrs, **({"axes": axes} if axes is not None and not as_input else {})},
    )


_REDUCTIONS = tuple(
    case
    for op, changed in (("ReduceSum", 13), ("ReduceMean", 18))
    for case in (
        _reduce(op, "attribute", 11, (1,)),
        _reduce(op, "from-behind", 12, (-1, 1), keepdims=0),
        _reduce(op, "input", changed, (2,), keepdims=0),
        _reduce(op, "batch", changed, (0,), keepdims=0),
        _reduce(op, "batch-and-more", 7, (0, 2)),
        _reduce(op, "all", changed, None, keepdims=0),
        _reduce(op, "all-kept", 11, None),
        _reduce(op, "none", changed, (), noop_with_empty_axes=1),
    )
)

CASES: tuple[Case, ...] = (*_VIEWS, *_PARTS, *_REDUCTIONS)
