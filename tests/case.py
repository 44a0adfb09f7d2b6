"""Case: a row of the operator table (tests/cases.py), an operator with everything needed to try it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], npt.NDArray[np.float64]]


def normal(rng: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """Standard normal values."""
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """Values in [0.5, 2): for logarithms, roots and divisors."""
    return rng.uniform(0.5, 2.0, shape)


def away_from(*kinks: float) -> Draw:
    """Values in [-4, 4] at least 0.01 from every point where the operator has no derivative."""

    def draw(rng: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
        values = rng.uniform(-4.0, 4.0, shape)
        for kink in kinks:
            near = np.abs(values - kink) < 0.01
            values = np.where(near, kink + 0.02, values)
        return values

    return draw


def distinct(rng: np.random.Generator, shape: Shape) -> npt.NDArray[np.float64]:
    """Values at least 0.01 apart: for maxima, where equal values leave the gradient undefined."""
    count = int(np.prod(shape))
    return (rng.permutation(count).astype(np.float64) * 0.01 - count * 0.005).reshape(shape)


@dataclass(frozen=True, slots=True)
class Case:
    """One node of an operator in one form.

    id:         unique name of the row.
    op, opset:  the ONNX operator and the opset of the model around it.
    inputs:     graph inputs, name -> shape, the batch in front.
    weights:    name -> shape; they become initializers, trainable where the operator says so.
    constants:  name -> value; initializers that are no parameters (axes, bounds). Float ones are stored as float64.
    attrs:      ONNX attributes.
    torch:      the same function in PyTorch: tensors by name -> tensor, or tuple of tensors for several outputs.
    order:      inputs of the node, "" = absent; () = inputs, weights, constants as they stand.
    draw:       how inputs and weights are drawn; `draws` overrides it by name.
    outputs:    how many outputs the node has (all are compared).
    gradients:  names of inputs and weights whose gradients are compared; None = all of them.
    integers:   inputs that are int64, name -> exclusive upper bound (class indices).
    reference:  whether onnx.reference knows this form.
    """

    id: str
    op: str
    opset: int
    inputs: Mapping[str, Shape]
    torch: Callable[[dict[str, Any]], Any]
    weights: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    draw: Draw = normal
    draws: Mapping[str, Draw] = field(default_factory=dict)
    outputs: int = 1
    gradients: tuple[str, ...] | None = None
    integers: Mapping[str, int] = field(default_factory=dict)
    reference: bool = True

    @property
    def node_inputs(self) -> tuple[str, ...]:
        """Names of the node's inputs in order."""
        return self.order or (*self.inputs, *self.weights, *self.constants)

    @property
    def node_outputs(self) -> tuple[str, ...]:
        """Names of the node's outputs in order."""
        return tuple(f"y{position}" for position in range(self.outputs))

    @property
    def compared(self) -> tuple[str, ...]:
        """Names whose gradients are compared."""
        if self.gradients is not None:
            return self.gradients
        return tuple(name for name in (*self.inputs, *self.weights) if name not in self.integers)

    @property
    def batch(self) -> int:
        """Samples of the case: the leading dimension of its first input."""
        return next(iter(self.inputs.values()))[0]

    def values(self, seed: int) -> dict[str, npt.NDArray[Any]]:
        """Inputs and weights, drawn; constants as they are."""
        rng = np.random.default_rng(seed)
        drawn: dict[str, npt.NDArray[Any]] = {}
        for name, shape in {**self.inputs, **self.weights}.items():
            if name in self.integers:
                drawn[name] = rng.integers(0, self.integers[name], shape, dtype=np.int64)
            else:
                drawn[name] = self.draws.get(name, self.draw)(rng, shape)
        return {**drawn, **self.constants}
