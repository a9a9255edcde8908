"""Trains a semi-autoregressive net by glancing at the answer: two forward passes of a batch.

    1   without gradients: at how many indices is the best token of g_t not the target's?     wrong
    2   at glance (1 - progress) wrong indices the net reads what it is to guess, f_{t+k} and x_{t+1+k} instead of f_t and
        x_{t+1}; it learns the other ones

    loss = SmoothL1(g_t, f_{t+k}) + 0.1 (0.9 soft + 0.1 hard)

soft: cross-entropy to the target's distribution of token t + 1 + k, at temperature 0.95; hard: to its best token. Shown are
the first indices of some blocks, so that the rest of such a block is learned with its beginning known, as if it had been
written one by one. What is shown is what later blocks read in any case.

    k = 2    block  0 1 | 2 3 | 4 5        shown: index 2; index 3 of the same block is learned knowing f_4
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import Taught, imitate, taught
from draftwood.drafters.nets.modules.semi import SemiNet, relaxed
from draftwood.models.rope import angles, frequencies
from draftwood.train.objectives import hard_cross_entropy, inverse, shifted, smooth_l1

_NOISE, _SHOWN = 4, 5  # streams of the step's generator
_CHUNK = 512  # positions whose logits exist at the same time
WORDS, SOFT, HARD, TEMPERATURE = 0.1, 0.9, 0.1, 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Glancing:
    """`glance`: share of the wrong indices that are shown at first; it falls to 0. `noise`: at most, on every number of a
    feature."""

    net: SemiNet
    keep: Int[Tensor, "W"]  # ids of the draft vocabulary, ascending
    noise: float = 0.1
    glance: float = 0.4
    needs: Needs = Needs(taps=frozenset({FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        k, f, rows = self.net.config.stages, shown.features[FINAL], shown.rows(self.keep)
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        at = taught(shown, places, 1 + k)
        right = shifted(f, k)
        best = self._best(right, rows, at)
        seen = self.seen(shown, self.wrong(shown, rows, at, best), progress)
        g, aim = self.outputs(shown, seen).flatten(0, 1), right.flatten(0, 1)
        # What was shown is not learned.
        hidden = ~seen.flatten()
        left = Taught(*(own[hidden[own]] for own in (at.answers, at.prompts)))
        soft, figures = imitate(g / TEMPERATURE, rows, aim / TEMPERATURE, rows, left)
        every, label = left.to(f.device).every, best[hidden[at.every].nonzero()[:, 0].to(f.device)]
        y, aim = g.index_select(0, every), aim.index_select(0, every)
        hard, _ = hard_cross_entropy(y, rows, label, f.dtype)
        loss = smooth_l1(y, aim) + WORDS * (SOFT * soft + HARD * hard)
        yield "net", loss, {f"{name}0": hit for name, hit in figures.items()}

    def _best(self, right: Float[Tensor, "B T H"], rows: Float[Tensor, "W H"], at: Taught) -> Int[Tensor, "L"]:
        """The best token of each taught index, as a row."""
        flat, every = right.flatten(0, 1), at.to(right.device).every
        parts = [(flat.index_select(0, part) @ rows.to(flat.dtype).T).argmax(-1) for part in every.split(_CHUNK)]
        return torch.cat(parts) if parts else every

    @torch.no_grad()
    def wrong(self, shown: Shown, rows: Float[Tensor, "W H"], at: Taught, best: Int[Tensor, "L"]) -> Int[Tensor, "B"]:
        """How many of each sequence's taught indices the net guesses wrongly now, nothing being shown."""
        batch, length = shown.ids.shape
        g = self.outputs(shown, torch.zeros(batch, length, dtype=torch.bool))
        missed = (self._best(g, rows, at) != best).long()
        every = at.to(missed.device).every
        return torch.zeros(batch, dtype=torch.int64, device=missed.device).index_add(0, every // length, missed)

    def seen(self, shown: Shown, wrong: Int[Tensor, "B"], progress: float) -> Bool[Tensor, "B T"]:
        """Which indices are shown: the first ones of blocks in random order, until there are enough of them."""
        k, (batch, length) = self.net.config.stages, shown.text.shape
        found = torch.zeros(batch, length, dtype=torch.bool)
        if k == 1 or not self.glance:
            return found
        noise, blocks = shown.generator(_SHOWN), -(-length // k)
        budget: list[int] = (self.glance * (1 - progress) * wrong).long().tolist()
        answered = shifted(shown.answer, 1 + k)
        for b, left in enumerate(budget):
            sizes: list[int] = torch.randint(1, k, (blocks,), generator=noise).tolist()
            order: list[int] = torch.randperm(blocks, generator=noise).tolist()
            for block in order:
                first, size = block * k, sizes[block]
                if left < size or not bool(answered[b, first : first + k].any()):
                    continue
                found[b, first : first + size] = True
                left -= size
        return found & answered

    def outputs(self, shown: Shown, seen: Bool[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """g at every index, `seen` ones being shown what they are to guess."""
        net, k, f = self.net, self.net.config.stages, shown.features[FINAL]
        (batch, length), at = shown.ids.shape, seen.to(f.device)
        if self.noise:
            source = shown.generator(_NOISE, f.device)
            wide = torch.promote_types(f.dtype, torch.float32)
            drawn = torch.rand(f.shape, generator=source, device=f.device, dtype=wide)
            noisy = (f.to(wide) + self.noise * (2 * drawn - 1)).to(f.dtype)
        else:
            noisy = f
        read = torch.where(at[..., None], shifted(f, k), noisy)
        tokens = torch.where(at, shifted(shown.ids, 1 + k), shifted(shown.ids, 1))
        kind = net.attention_norm.dtype
        z = torch.cat([shown.embed(tokens).to(kind), read.to(kind)], dim=-1)
        s, _ = net.lstm(z)
        turns = angles(
            frequencies(net.config.layer).to(f.device), torch.arange(length, device=f.device).repeat(batch), s.dtype
        )
        q, keys, values = (
            x.unflatten(0, (batch, length)).transpose(1, 2) for x in net.project(s.flatten(0, 1), *turns)
        )
        group = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=relaxed(length, k, f.device))
        return net.layer.tail(s, mixed.transpose(1, 2).flatten(2))
