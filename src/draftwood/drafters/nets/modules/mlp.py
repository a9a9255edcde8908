"""The MLP speculator: a small recurrent net over the last feature and the tokens drafted so far.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) e_i))      e_i: embedding of the token x_i drafted last

    MLPNet         e_i = emb E[x_i]    logits_i = W head(s_i)    E and W are the target's own
    MLPTablesNet   e_i = emb_i[x_i]    logits_i = head_i s_i     as the original trains it, with tables for each step

MLPNet reads the target's tables through one projection each: tables of its own would outweigh the target.
a_s = 0.5^(0.5/n) and a_e = sqrt((1 - a_s^2) inner / 2) keep the context at half of the state's energy by the last step.
Tied, all steps share one norm, one embedding and one head, and all but the first one projection.
"""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig

_EPS = 1e-6


class _Recurrence(nn.Module, ABC):
    """The states, whatever gives them the embedding of the token drafted last."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        inner, n = config.layer.hidden_size, config.stages
        own = 1 if config.tied else n
        self.first = nn.Linear(config.target_hidden, inner, bias=False)
        self.proj = nn.ModuleList(nn.Linear(inner, inner, bias=False) for _ in range(min(own, n - 1)))
        self._add_tables(own)
        self.weight = nn.Parameter(torch.ones(own, inner))
        self.bias = nn.Parameter(torch.zeros(own, inner))
        state = 0.5 ** (0.5 / n)
        self.mix = math.sqrt((1 - state**2) * inner / 2) / state  # a_e / a_s

    @abstractmethod
    def _add_tables(self, own: int) -> None:
        """Embedding and head: `own` of them where each step has its own."""

    def start(self, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """The state before the first step."""
        return _scaled(f) / math.sqrt(2) if self.config.scale_input else f

    def _next(self, index: int, s: Float[Tensor, "*S _"], e: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S inner"]:
        above = self.first(s) if index == 0 else self.proj[self._own(index - 1)](s)
        x, which = _scaled(above + self.mix * e), self._own(index)
        return F.gelu(x * self.weight[which].to(x.dtype) + self.bias[which].to(x.dtype))

    def _own(self, index: int) -> int:
        """Which one of the tables, norms or projections step `index` reads."""
        return 0 if self.config.tied else index


class MLPNet(_Recurrence):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        for module in (self.first, self.emb, self.head, *self.proj):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight.shape[1]))  # type: ignore[arg-type]

    def _add_tables(self, own: int) -> None:
        d, inner = self.config.target_hidden, self.config.layer.hidden_size
        self.emb = nn.Linear(d, inner, bias=False)
        self.head = nn.Linear(inner, d, bias=False)

    def step(self, index: int, s: Float[Tensor, "*S _"], e: Float[Tensor, "*S H"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the embedding of the token drafted last."""
        return self._next(index, s, self.emb(e))

    def read(self, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S H"]:
        return self.head(s)


class MLPTablesNet(_Recurrence):
    def _add_tables(self, own: int) -> None:
        inner = self.config.layer.hidden_size
        self.emb = nn.Parameter(torch.zeros(own, self.config.layer.vocab_size, inner))
        self.head = nn.Parameter(torch.zeros(own, self.config.rows, inner))

    def step(self, index: int, s: Float[Tensor, "*S _"], token: Int[Tensor, "*S"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the token drafted last."""
        return self._next(index, s, self.emb[self._own(index)][token].to(s.dtype))

    def logits(self, index: int, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S W"]:
        return F.linear(s, self.head[self._own(index)].to(s.dtype))


def _scaled(x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPS).to(x.dtype)
