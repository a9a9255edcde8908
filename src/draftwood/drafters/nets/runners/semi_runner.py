"""A semi-autoregressive net as a model. Entries of text are in its cache, with the LSTM's state after each of them, so that
any prefix of a text can be shared and continued. Guessed blocks are tensors of one round: nothing of them reaches the cache.

Shapes follow from what the host knows, and the host reads nothing, so the same operations run on an accelerator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.core.host import put
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.refresh import refresh_net
from draftwood.drafters.nets.modules.semi import PARTS
from draftwood.drafters.nets.runners.runner import FeatureNet
from draftwood.models.attention import write_entries
from draftwood.models.rope import angles
from draftwood.runners.with_cache import WithCache


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """What guessed blocks read of some slots: entries of all their text, staged pairs included."""

    ends: list[int]  # how many entries each has
    keys: Float[Tensor, "B kv T w"]
    values: Float[Tensor, "B kv T w"]
    states: Float[Tensor, "B n parts d"]  # after the last n entries
    length: Int[Tensor, "B 1"]


@dataclass(frozen=True, slots=True, eq=False)
class Guessed:
    """Blocks of a round: outputs g, the state after each block, keys and values, and which blocks each may attend to."""

    outputs: Float[Tensor, "B M n d"]
    states: Float[Tensor, "B M parts d"]
    keys: Float[Tensor, "B M n kv w"]
    values: Float[Tensor, "B M n kv w"]
    sees: Bool[Tensor, "B M M"]


class SemiRunner(FeatureNet, WithCache):
    """`block`: features of one pass, k."""

    def __init__(self, net: Any, target: Runner, ids: Int[Tensor, "W"] | None, cache: DenseCache | None = None) -> None:
        FeatureNet.__init__(self, net, target, ids)
        WithCache.__init__(self, cache)
        self.block: int = net.config.stages
        self.cache_specs = (*self.cache_specs, CacheSpec("state", PARTS, net.config.layer.hidden_size, self.dtype))

    def open(self, slots: int, capacity: int) -> "SemiRunner":
        cache = DenseCache(self.cache_specs, slots=slots, capacity=capacity, device=self.target.info.device)
        return SemiRunner(self.net, self.target, self.ids, cache)

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        refresh_net(self.net, weights)

    @torch.inference_mode()
    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        """Pairs of text: their entries, and nothing else."""
        assert x.hidden is not None
        net, cache = self.net, self.cache
        segments = cache.stage(x)
        z = torch.cat([self.target.embed(x.ids).to(self.dtype), x.hidden.to(self.dtype)], dim=-1)
        store = cache.store("state")
        before = torch.stack(
            [
                store[s.slot, :, s.committed + s.first_entry - 1]
                if s.committed + s.first_entry
                else store.new_zeros(PARTS, z.shape[-1] // 2)
                for s in segments
            ]
        )
        longest = max(s.stop - s.start for s in segments)
        padded = torch.stack([F.pad(z[s.start : s.stop], (0, 0, 0, longest - s.stop + s.start)) for s in segments])
        made = net.states(padded, before)
        states = torch.cat([each[: s.stop - s.start] for each, s in zip(made, segments, strict=True)])
        cos, sin = angles(self._freq, x.positions, self.dtype)
        _, k, v = net.project(states[:, -2], cos, sin)
        for s in segments:
            for name, new in (("k0", k), ("v0", v), ("state", states)):
                write_entries(cache.store(name), new, s, x)
        return x.hidden, z.new_zeros(0, net.config.rows if only is None else len(only))

    @torch.inference_mode()
    def text(self, slots: Sequence[int], ends: Sequence[int]) -> Text:
        """`ends`: entries of each slot, staged ones included."""
        n, most = self.block, max(ends)
        at = put(list(slots), self.target.info.device)
        last = put([[end - n + i for i in range(n)] for end in ends], at.device)
        keys, values = (self.cache.store(name)[:, :, :most].index_select(0, at) for name in ("k0", "v0"))
        states = self.cache.store("state")[at[:, None], :, last]
        return Text(list(ends), keys, values, states, put(list(ends), at.device)[:, None])

    @torch.inference_mode()
    def first(self, text: Text) -> Guessed:
        """The block of the text's last k indices, which guesses the k tokens behind the root. Its keys are the text's."""
        batch = len(text.keys)
        at = text.length + torch.arange(-self.block, 0, device=text.keys.device)
        g, keys, values = self._layer(text.states[:, None, :, -2], at[:, None], text, None, None)
        sees = torch.zeros(batch, 1, 1, dtype=torch.bool, device=g.device)
        return Guessed(g, text.states[:, -1:], torch.zeros_like(keys), torch.zeros_like(values), sees)

    @torch.inference_mode()
    def more(
        self,
        text: Text,
        had: Guessed,
        above: Int[Tensor, "B F"],
        tokens: Int[Tensor, "B F n"],
        at: Int[Tensor, "B F n"],
    ) -> Guessed:
        """With a block behind each of `above`: it reads the features which that one guessed, beside these tokens, at these
        positions."""
        batch, count, _ = tokens.shape
        read, state, sees = (
            x.gather(1, above.view(batch, count, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))
            for x in (had.outputs, had.states, had.sees)
        )
        z = torch.cat([self.target.embed(tokens).to(self.dtype), read], dim=-1)
        states = self.net.states(z.flatten(0, 1), state.flatten(0, 1)).unflatten(0, (batch, count))
        g, keys, values = self._layer(states[..., -2, :], at, text, had, sees)
        own = _eye(batch, count, g.device)
        none = torch.zeros(batch, had.sees.shape[1], count, dtype=torch.bool, device=g.device)
        whole = torch.cat([torch.cat([had.sees, none], dim=2), torch.cat([sees, own], dim=2)], dim=1)
        return Guessed(
            torch.cat([had.outputs, g], dim=1),
            torch.cat([had.states, states[:, :, -1]], dim=1),
            torch.cat([had.keys, keys], dim=1),
            torch.cat([had.values, values], dim=1),
            whole,
        )

    def _layer(
        self,
        s: Float[Tensor, "B F n d"],
        at: Int[Tensor, "B F n"],
        text: Text,
        had: Guessed | None,
        sees: Bool[Tensor, "B F M"] | None,
    ) -> tuple[Float[Tensor, "B F n d"], Float[Tensor, "B F n kv w"], Float[Tensor, "B F n kv w"]]:
        """Blocks that attend to their text, to the blocks that they see, and to all of themselves. Without `had` they are
        the text's own last indices."""
        (batch, count, n, _), length = s.shape, text.keys.shape[2]
        cos, sin = angles(self._freq, at.flatten(), self.dtype)
        turned = self.net.project(s.flatten(0, 2), cos, sin)
        q, k, v = (x.unflatten(0, (batch, count, n)) for x in turned)
        keys, values = text.keys, text.values
        mask = (torch.arange(length, device=s.device) < text.length)[:, None].expand(-1, count, -1)
        if had is not None and sees is not None:
            own = _eye(batch, count, s.device)
            blocks = torch.cat([sees, own], dim=2)
            wide = blocks.shape[2] * n
            mask = torch.cat([mask, blocks.repeat_interleave(n, dim=2, output_size=wide)], dim=2)
            keys, values = (
                torch.cat([x, torch.cat([old, new], dim=1).flatten(1, 2).transpose(1, 2)], dim=2)
                for x, old, new in ((keys, had.keys, k), (values, had.values, v))
            )
        group = q.shape[3] // k.shape[3]
        mixed = F.scaled_dot_product_attention(
            q.flatten(1, 2).transpose(1, 2),
            keys.repeat_interleave(group, dim=1, output_size=q.shape[3]),
            values.repeat_interleave(group, dim=1, output_size=q.shape[3]),
            attn_mask=mask.repeat_interleave(n, dim=1, output_size=count * n)[:, None],
        )
        return self.net.layer.tail(s, mixed.transpose(1, 2).reshape(batch, count, n, -1)), k, v

    @torch.inference_mode()
    def logits(self, g: Float[Tensor, "*S d"], only: Int[Tensor, "W"] | None) -> Float[Tensor, "*S W"]:
        return self.target.head(g, ids=self.ids if only is None else only, norm=False)

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> None:
        """Block by block."""


def _eye(batch: int, count: int, device: torch.device) -> Bool[Tensor, "B F F"]:
    """Every block sees itself."""
    return torch.eye(count, dtype=torch.bool, device=device).expand(batch, -1, -1)
