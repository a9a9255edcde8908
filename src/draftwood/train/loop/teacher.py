"""The target as teacher: it computes the features of each batch while training runs, so none are stored.

A float decoder runs a whole padded batch at once. Any other backend runs sequence by sequence through its ordinary pass,
so that on a CPU the training targets come from the backend that will verify the drafts.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.cache.dense import cache_for
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.train_plan import Shown
from draftwood.models.decoder import Decoder
from draftwood.models.rope import angles, rotate

_CHUNK = 512  # tokens of one pass of a backend


class Teacher:
    """Computes a frozen model's features, embeddings and LM-head rows."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # By the address of `keep`, which is held so that it stays.
        self._rows: dict[int, tuple[Tensor | None, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return getattr(self.model, "device", torch.device("cpu"))

    @torch.no_grad()
    def show(
        self,
        ids: Int[Tensor, "B T"],
        answer: Bool[Tensor, "B T"],
        live: Bool[Tensor, "B T"],
        taps: frozenset[int],
        seed: int,
        prompt_share: float = 0.0,
    ) -> Shown:
        """One batch, given on the host; taps as in core.forward."""
        run = decoder_features if isinstance(self.model, Decoder) else backend_features
        here = ids.to(self.device, non_blocking=True)
        features = run(self.model, here, live, taps)
        return Shown(here, ids, answer, live, features, self.embed, self.rows, seed, prompt_share)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        with torch.no_grad():
            return self.model.embed(ids)

    def rows(self, keep: Int[Tensor, "W"] | None) -> Float[Tensor, "W H"]:
        """LM-head rows as floats: its output for unit vectors. Cached, because every step asks for the same ids."""
        key = 0 if keep is None else keep.data_ptr()
        if key not in self._rows:
            width = self.model.embed(torch.zeros(1, dtype=torch.int64, device=self.device)).shape[-1]
            unit = torch.eye(width, device=self.device, dtype=self.model.dtype)
            with torch.no_grad():
                ids = None if keep is None else keep.to(self.device)
                self._rows[key] = keep, self.model.head(unit, ids=ids, norm=False).T.contiguous()
        return self._rows[key][1]


def decoder_features(model: Decoder, ids: Tensor, live: Tensor, taps: frozenset[int]) -> dict[int, Tensor]:
    """All sequences of a batch at once, with a causal mask. Padding comes after the text, so no token attends to it."""
    batch, length = ids.shape
    c = model.config
    h = model.embed(ids).flatten(0, 1)
    at = torch.arange(length, device=ids.device).repeat(batch)
    cos, sin = angles(model.freq, at, model.dtype)  # type: ignore[arg-type]
    found = {0: h} if 0 in taps else {}
    for i, layer in enumerate(model.layers, start=1):
        x = F.rms_norm(h, (c.hidden_size,), layer.attention_norm, c.rms_eps)  # type: ignore[arg-type]
        qkv = layer.qkv(x).view(len(h), -1, c.head_dim)  # type: ignore[operator]
        q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.q_norm is not None:
            q = F.rms_norm(q, (c.head_dim,), layer.q_norm, c.rms_eps)  # type: ignore[arg-type]
            k = F.rms_norm(k, (c.head_dim,), layer.k_norm, c.rms_eps)  # type: ignore[arg-type]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (y.unflatten(0, (batch, length)).transpose(1, 2) for y in (q, k, v))
        mixed = _causal(q, k, v, c.sliding_window)
        h = h + layer.out(mixed.transpose(1, 2).reshape(len(h), -1))  # type: ignore[operator]
        h = h + layer.mlp(h)  # type: ignore[operator]
        if i in taps:
            found[i] = h
    if FINAL in taps:
        found[FINAL] = F.rms_norm(h, (c.hidden_size,), model.norm, c.rms_eps)
    return {tap: x.unflatten(0, (batch, length)) for tap, x in found.items()}


def _causal(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    group, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if window is None or length <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril().triu(1 - window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def backend_features(model: Any, ids: Tensor, live: Tensor, taps: frozenset[int]) -> dict[int, Tensor]:
    """Sequence by sequence through the backend's own pass; padded positions stay zero."""
    batch, length = ids.shape
    found: dict[int, Tensor] = {}
    for b in range(batch):
        size = int(live[b].sum())
        cache = cache_for(model, 1, length)
        cache.admit(0, ids[b, :size].tolist())
        for at in range(0, size, _CHUNK):
            part = ids[b, at : min(at + _CHUNK, size)]
            entries = torch.arange(len(part))
            tokens = ForwardInput(part, torch.zeros_like(part), entries + at, entries, entries - 1, want=entries[:0])
            cache.reserve([0], [len(part)])
            output = model.forward(tokens, cache, taps=taps)
            cache.commit([0], [list(range(len(part)))])
            for tap, x in output.features.items():
                whole = found.setdefault(tap, x.new_zeros(batch, length, x.shape[-1]))
                whole[b, at : at + len(part)] = x
    return {tap: x.clone() for tap, x in found.items()}
