"""Updates of parameters. The formulas are PyTorch's, step for step, so that its results are reproduced."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from planc.runtime.kernels.blocks import blocks, number
from planc.runtime.launch import Hyper, Kernel, Launch

Values = npt.NDArray[Any]


def _decayed(gradient: Values, parameter: Values, weight_decay: float, out: Values) -> None:
    """out = gradient + weight_decay parameter: the gradient of the loss with an L2 penalty."""
    if weight_decay:
        np.multiply(parameter, weight_decay, out=out)
        np.add(out, gradient, out=out)
    else:
        np.copyto(out, gradient)


def _sgd(launch: Launch, hyper: Hyper) -> None:
    """SgdUpdate: p -= lr g."""
    weight_decay = number(launch.attrs, "weight_decay")
    for p, g, new_p, work in blocks(*launch.inputs, *launch.outputs, scratch=1):
        _decayed(g, p, weight_decay, work)
        np.multiply(work, hyper.lr, out=work)
        np.subtract(p, work, out=new_p)


def _momentum(launch: Launch, hyper: Hyper) -> None:
    """MomentumUpdate: b = momentum b + g; p -= lr b, or with Nesterov p -= lr (g + momentum b).

    Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in deep learning", ICML 2013,
    in PyTorch's form without dampening: the learning rate stands outside the momentum.
    """
    weight_decay, momentum = number(launch.attrs, "weight_decay"), number(launch.attrs, "momentum")
    nesterov = number(launch.attrs, "nesterov") != 0
    for p, g, b, new_p, new_b, work, step in blocks(*launch.inputs, *launch.outputs, scratch=2):
        _decayed(g, p, weight_decay, work)
        np.multiply(b, momentum, out=new_b)
        np.add(new_b, work, out=new_b)
        if nesterov:
            np.multiply(new_b, momentum, out=step)
            np.add(step, work, out=step)
            np.multiply(step, hyper.lr, out=step)
        else:
            np.multiply(new_b, hyper.lr, out=step)
        np.subtract(p, step, out=new_p)


def _adam(launch: Launch, hyper: Hyper) -> None:
    """AdamUpdate: m and v are running means of g and g^2; p -= lr m' / (sqrt(v') + epsilon), bias corrected.

    Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015. `decoupled`: the weight decay shrinks the
    parameter by itself (Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019).
    """
    beta1, beta2 = number(launch.attrs, "beta1"), number(launch.attrs, "beta2")
    epsilon, weight_decay = number(launch.attrs, "epsilon"), number(launch.attrs, "weight_decay")
    decoupled = number(launch.attrs, "decoupled") != 0
    step_size = hyper.lr / (1.0 - beta1**hyper.step)
    root_correction = sqrt(1.0 - beta2**hyper.step)
    keep = 1.0 - hyper.lr * weight_decay if decoupled else 1.0
    penalty = 0.0 if decoupled else weight_decay
    for p, g, m, v, new_p, new_m, new_v, grad, work in blocks(*launch.inputs, *launch.outputs, scratch=2):
        _decayed(g, p, penalty, grad)
        np.multiply(m, beta1, out=new_m)
        np.multiply(grad, 1.0 - beta1, out=work)
        np.add(new_m, work, out=new_m)
        np.multiply(grad, grad, out=grad)
        np.multiply(grad, 1.0 - beta2, out=grad)
        np.multiply(v, beta2, out=new_v)
        np.add(new_v, grad, out=new_v)
        np.sqrt(new_v, out=work)
        np.divide(work, root_correction, out=work)
        np.add(work, epsilon, out=work)
        np.divide(new_m, work, out=work)
        np.multiply(work, step_size, out=work)
        np.multiply(p, keep, out=grad)
        np.subtract(grad, work, out=new_p)


KERNELS: dict[str, Kernel] = {
    "SgdUpdate": _sgd,
    "MomentumUpdate": _momentum,
    "AdamUpdate": _adam,
}
