"""Rows of the operator table: activations and functions of a number."""

from __future__ import annotations

from typing import Any

from case import Case, Draw, Shape, away_from, normal, positive

_X = {"x": (5, 3, 4)}


def _functional(name: str, *args: Any, **kwargs: Any) -> Any:
    """A function of torch.nn.functional on x, by name: this file is read where there is no PyTorch, too."""

    def call(t: dict[str, Any]) -> Any:
        from torch.nn import functional

        return getattr(functional, name)(t["x"], *args, **kwargs)

    return call


def _row(op: str, opset: int, torch: Any, *, draw: Draw = normal, form: str = "", **attrs: Any) -> Case:
    return Case(f"{op}{form and '-'}{form}", op, opset, _X, torch, attrs=attrs, draw=draw)


def _selu(alpha: float, gamma: float) -> Any:
    """ONNX's defaults are float32, read as the shortest decimals that mean them; PyTorch's own have more digits."""
    return lambda t: gamma * (t["x"].clamp(min=0) + alpha * t["x"].clamp(max=0).expm1())


def _stepped(op: str, torch: Any) -> Case:
    """Constant between its steps; its gradient is none."""
    return Case(op, op, 13, _X, torch, draw=away_from(-2, -1, 0, 1, 2), gradients=())


def _wide(rng: Any, shape: Shape) -> Any:
    """Values on both branches of erf and where it is flat."""
    return rng.uniform(-8.0, 8.0, shape)


CASES: tuple[Case, ...] = (
    _row("Abs", 13, lambda t: t["x"].abs(), draw=away_from(0)),
    _row("Celu", 12, _functional("celu"), draw=away_from(0)),
    _row("Celu", 12, _functional("celu", 0.5), draw=away_from(0), form="alpha", alpha=0.5),
    _row("Cos", 7, lambda t: t["x"].cos()),
    _row("Erf", 13, lambda t: t["x"].erf()),
    _row("Erf", 9, lambda t: t["x"].erf(), draw=_wide, form="wide"),
    _row("Gelu", 20, _functional("gelu")),
    _row("Gelu", 20, _functional("gelu"), draw=_wide, form="wide"),
    _row("Gelu", 20, _functional("gelu", approximate="tanh"), form="tanh", approximate="tanh"),
    _row("Mish", 18, _functional("mish")),
    _row("Mish", 22, lambda t: t["x"] * (t["x"].exp() + 1).log().tanh(), draw=_wide, form="wide"),
    _row("Reciprocal", 13, lambda t: 1 / t["x"], draw=positive),
    _row("Selu", 22, _selu(1.6732632, 1.050701), draw=away_from(0)),
    _row("Selu", 7, _selu(0.5, 3.0), draw=away_from(0), form="numbers", alpha=0.5, gamma=3.0),
    _row("Sin", 22, lambda t: t["x"].sin()),
    _row("Softsign", 7, _functional("softsign")),
    _row("Swish", 24, _functional("silu")),
    _row("Swish", 24, lambda t: t["x"] * (1.5 * t["x"]).sigmoid(), form="alpha", alpha=1.5),
    _row("ThresholdedRelu", 10, lambda t: t["x"] * (t["x"] > 1), draw=away_from(1)),
    _row("ThresholdedRelu", 22, lambda t: t["x"] * (t["x"] > 0.25), draw=away_from(0.25), form="alpha", alpha=0.25),
    _stepped("Ceil", lambda t: t["x"].ceil()),
    _stepped("Floor", lambda t: t["x"].floor()),
    _stepped("Round", lambda t: t["x"].round()),
    _stepped("Sign", lambda t: t["x"].sign()),
)
