"""The recurrence of an MLP speculator, whatever gives it the embedding e_i of the token drafted last.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) e_i))

a_s = 0.5^(0.5/n) and a_e = sqrt((1 - a_s^2) inner / 2) keep the context at half of the state's energy by the last step.
Tied, all steps share one norm, and all but the first one projection.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from draftwood.drafters.nets.config import HeadConfig

_EPS = 1e-6


def mix(config: HeadConfig) -> float:
    """a_e / a_s: how much of the token is added to the state."""
    state = 0.5 ** (0.5 / config.stages)
    return math.sqrt((1 - state**2) * config.layer.hidden_size / 2) / state


def start(config: HeadConfig, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
    """The state before the first step."""
    return _scaled(f) / math.sqrt(2) if config.scale_input else f


def step(net: Any, index: int, s: Float[Tensor, "*S _"], e: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S inner"]:
    """The next state. `net` has `config`, `mix`, the layers `first` and `proj`, and the norms' `weight` and `bias`."""
    which = own(net.config, index)
    above = net.first(s) if index == 0 else net.proj[own(net.config, index - 1)](s)
    x = _scaled(above + net.mix * e)
    return F.gelu(x * net.weight[which].to(x.dtype) + net.bias[which].to(x.dtype))


def own(config: HeadConfig, index: int) -> int:
    """Which one of the tables, norms or projections step `index` reads."""
    return 0 if config.tied else index


def _scaled(x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPS).to(x.dtype)
