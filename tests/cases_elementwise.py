"""Rows of the operator table: elementwise operators of one tensor and arithmetic on several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from case import Case, Draw, Shape, away_from, normal, positive

_X = {"x": (5, 3, 4)}


def _functional(name: str, *args: Any, **kwargs: Any) -> Any:
    """A function of torch.nn.functional on x, by name: this file is read where there is no PyTorch, too."""

    def call(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        return getattr(functional, name)(t["x"], *args, **kwargs)

    return call


def _unary(op: str, torch: Any, *, draw: Draw = normal, form: str = "", opset: int = 13, **attrs: Any) -> Case:
    return Case(f"{op}{form and '-'}{form}", op, opset, _X, torch, attrs=attrs, draw=draw)


def _clip(form: str, opset: int, low: float | None, high: float | None, kinks: Draw) -> Case:
    """Clip with bounds as attributes before opset 11, as inputs since."""
    bounds = {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    as_inputs = opset >= 11
    return Case(
        f"Clip-{form}",
        "Clip",
        opset,
        _X,
        lambda t: t["x"].clamp(low, high) if bounds else t["x"] * 1.0,
        constants={name: np.array(value) for name, value in bounds.items()} if as_inputs else {},
        attrs={} if as_inputs else bounds,
        order=("x", *(name if name in bounds else "" for name in ("min", "max"))) if as_inputs else (),
        draw=kinks,
    )


_UNARY = (
    _unary("Relu", _functional("relu"), draw=away_from(0)),
    _unary("Relu", _functional("relu"), draw=away_from(0), form="opset7", opset=7),
    _unary("LeakyRelu", _functional("leaky_relu", 0.01), draw=away_from(0)),
    _unary("LeakyRelu", _functional("leaky_relu", 0.25), draw=away_from(0), form="alpha", opset=16, alpha=0.25),
    _unary("LeakyRelu", _functional("leaky_relu", -0.5), draw=away_from(0), form="negative", alpha=-0.5),
    _unary("LeakyRelu", _functional("leaky_relu", 2.0), draw=away_from(0), form="steep", alpha=2.0),
    _unary("Sigmoid", lambda t: t["x"].sigmoid()),
    _unary("Tanh", lambda t: t["x"].tanh()),
    _unary("Exp", lambda t: t["x"].exp()),
    _unary("Log", lambda t: t["x"].log(), draw=positive),
    _unary("Sqrt", lambda t: t["x"].sqrt(), draw=positive),
    _unary("Neg", lambda t: -t["x"]),
    _unary("Identity", lambda t: t["x"] * 1.0),
    _unary("Elu", _functional("elu"), draw=away_from(0)),
    _unary("Elu", _functional("elu", 0.5), draw=away_from(0), form="alpha", opset=7, alpha=0.5),
    _unary("Softplus", _functional("softplus")),
    _unary("HardSwish", _functional("hardswish"), draw=away_from(-3, 3), opset=14),
    _unary("HardSigmoid", lambda t: (0.2 * t["x"] + 0.5).clamp(0, 1), draw=away_from(-2.5, 2.5)),
    _unary(
        "HardSigmoid",
        lambda t: (0.5 * t["x"] + 0.25).clamp(0, 1),
        draw=away_from(-0.5, 1.5),
        form="alpha-beta",
        opset=22,
        alpha=0.5,
        beta=0.25,
    ),
    _clip("attributes", 7, -1.5, 2.0, away_from(-1.5, 2.0)),
    _clip("attribute-max", 10, None, 0.5, away_from(0.5)),
    _clip("inputs", 13, -1.5, 2.0, away_from(-1.5, 2.0)),
    _clip("input-min", 11, 0.0, None, away_from(0.0)),
    _clip("input-max", 12, None, 0.5, away_from(0.5)),
    _clip("open", 13, None, None, normal),
    Case("Cast-float", "Cast", 13, _X, lambda t: t["x"] * 1.0, attrs={"to": 11}),
    Case("Cast-integers", "Cast", 9, _X, lambda t: t["x"].double(), attrs={"to": 11}, integers={"x": 9}, gradients=()),
)


# Arithmetic on several tensors

_TORCH = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Pow": lambda a, b: a**b,
}


def _pair(op: str, form: str, inputs: Mapping[str, Shape], weights: Mapping[str, Shape], order: str = "ab") -> Case:
    """a op b, each an input or a weight."""
    return Case(
        f"{op}-{form}",
        op,
        13 if len(form) % 2 else 7,
        inputs,
        lambda t: _TORCH[op](t[order[0]], t[order[1]]),
        weights=weights,
        order=tuple(order),
        draw=positive if op in ("Div", "Pow") else normal,
    )


_PAIRS = tuple(
    case
    for op in _TORCH
    for case in (
        _pair(op, "equal", {"a": (5, 3, 4), "b": (5, 3, 4)}, {}),
        _pair(op, "bias", {"a": (5, 3, 4)}, {"b": (3, 1)}),
        _pair(op, "bias-first", {"a": (5, 3, 4)}, {"b": (1, 3, 4)}, order="ba"),
        _pair(op, "gate", {"a": (5, 3, 4), "b": (5, 3, 1)}, {}),
        _pair(op, "outer", {"a": (5, 1, 4), "b": (5, 3, 1)}, {}),
        _pair(op, "grows", {"a": (5, 1, 4)}, {"b": (3, 1)}),
        _pair(op, "batch-behind", {"a": (5, 4), "b": (5, 5, 4)}, {}),
        _pair(op, "weight-a-sample", {"a": (5, 3)}, {"b": (5, 3)}),
    )
)


def _scalar(op: str, value: float, *, first: bool = False, opset: int = 13, shape: Shape = ()) -> Case:
    """x op literal, or literal op x."""
    return Case(
        f"{op}-{'first-' if first else ''}literal{len(shape)}",
        op,
        opset,
        _X,
        lambda t: _TORCH[op](value, t["x"]) if first else _TORCH[op](t["x"], value),
        constants={"c": np.full(shape, value)},
        order=("c", "x") if first else ("x", "c"),
        draw=positive,
        gradients=("x",),
    )


def _power(value: float, opset: int = 13, draw: Draw = positive) -> Case:
    return Case(
        f"Pow-{value}",
        "Pow",
        opset,
        _X,
        lambda t: t["x"] ** value,
        constants={"e": np.array(value)},
        draw=draw,
        gradients=("x",),
    )


_LITERALS = (
    *(_scalar(op, 1.75, first=first) for op in _TORCH for first in (False, True)),
    *(_scalar(op, -2.5, shape=(1,), opset=7) for op in ("Add", "Sub", "Mul", "Div")),
    *(_power(value) for value in (0.0, 0.5, 1.0, -1.0, 1.7)),
    *(_power(value, opset=7, draw=normal) for value in (2.0, 3.0)),
    Case(
        "Pow-integer-exponent",
        "Pow",
        12,
        _X,
        lambda t: t["x"] ** 2,
        constants={"e": np.array(2, np.int64)},
        gradients=("x",),
    ),
)

_MANY = (
    Case("Sum-one", "Sum", 8, _X, lambda t: t["x"] * 1.0),
    Case("Sum-two", "Sum", 13, {"a": (5, 3), "b": (5, 3)}, lambda t: t["a"] + t["b"]),
    Case("Sum-same", "Sum", 13, _X, lambda t: t["x"] + t["x"], order=("x", "x")),
    Case(
        "Sum-broadcast",
        "Sum",
        8,
        {"a": (5, 1, 4), "b": (5, 3, 1)},
        lambda t: t["a"] + t["b"] + t["c"],
        weights={"c": (3, 4)},
    ),
    Case("Mul-same", "Mul", 13, _X, lambda t: t["x"] * t["x"], order=("x", "x")),
    Case(
        "PRelu-channels",
        "PRelu",
        9,
        _X,
        lambda t: t["x"].clamp(min=0) + t["slope"] * t["x"].clamp(max=0),
        weights={"slope": (3, 1)},
        draw=away_from(0),
    ),
    Case(
        "PRelu-one",
        "PRelu",
        16,
        _X,
        lambda t: t["x"].clamp(min=0) + t["slope"] * t["x"].clamp(max=0),
        weights={"slope": (1,)},
        draw=away_from(0),
    ),
    Case(
        "PRelu-elements",
        "PRelu",
        7,
        _X,
        lambda t: t["x"].clamp(min=0) + t["slope"] * t["x"].clamp(max=0),
        weights={"slope": (1, 3, 4)},
        draw=away_from(0),
    ),
)

CASES: tuple[Case, ...] = (*_UNARY, *_PAIRS, *_LITERALS, *_MANY)
