"""The nonlinearities f of recurrent and recursive networks (Socher et al. 2014, section 3.2, tries all four)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Activation(NamedTuple):
    """`apply` computes f in place; `slope` gives the derivative of f from its value."""

    apply: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "tanh": Activation(torch.tanh_, lambda h: 1 - h.square()),
    "relu": Activation(torch.relu_, lambda h: (h > 0).to(h.dtype)),
    "sigmoid": Activation(torch.sigmoid_, lambda h: h * (1 - h)),
    "identity": Activation(lambda h: h, torch.ones_like),
}
