"""Trains a length net: how many tokens of a drafter's chain the target would have written itself.

The label of a root x_r is the length of the longest beginning of the drafter's own greedy chain behind it that stands in the
target's answer too. The net reads the token before the root and the target's feature there: x_{r-1}, f_{r-1}.

A chain that is too short costs a target pass, one that is too long some draft steps, so errors count unequally:

    loss = mean of |k' - k| * (1 if k' >= k else short)

whose best constant is the quantile short / (1 + short) of the labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.controllers.stopping.predicted_length import EMBEDDING
from draftwood.core.forward import FINAL, Needs
from draftwood.core.host import host
from draftwood.core.protocols import Drafter
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.lengths.rollout import agreed, taps_of
from draftwood.drafters.nets.modules.length import LengthNet


@dataclass(frozen=True, slots=True, eq=False)
class Length:
    """`drafter` writes the chains and stays as it is; at most `most` tokens of each count. `short`: the weight of a draft
    that is too short. `share`: of the positions that are used in a step."""

    net: LengthNet
    drafter: Drafter
    most: int
    short: float = 3.0
    share: float = 1.0

    @property
    def needs(self) -> Needs:
        return Needs(taps=taps_of(self.drafter) | {EMBEDDING, FINAL})

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        found = self.roots(shown)
        labels = [self.labels(shown, b, roots) for b, roots in enumerate(found)]
        before = [(b, root - 1) for b, roots in enumerate(found) for root in roots]
        device = self.net.last.weight.device
        k = torch.tensor([float(each) for own in labels for each in own], device=device)
        at = torch.tensor(before, dtype=torch.long, device=device).view(-1, 2).unbind(1)
        read = [shown.features[tap][at].to(self.net.last.weight.dtype) for tap in (EMBEDDING, FINAL)]
        loss = uneven(self.net(*read), k, self.short)
        level = self.short / (1 + self.short)
        usual = k.quantile(level, interpolation="nearest") if len(k) else k.sum()
        constant = uneven(usual.expand_as(k), k, self.short)
        yield "net", loss, {"length": k.mean() if len(k) else k.sum(), "constant": constant}

    def roots(self, shown: Shown) -> list[list[int]]:
        """Of each text the tokens that the target wrote behind another one of its own or the prompt, and before another one
        of its own: as in a round, whose root is never the last token of an answer."""
        root = shown.answer.clone()
        root[:, :1] = False
        root[:, :-1] &= shown.answer[:, 1:]
        root[:, -1:] = False
        if self.share < 1:
            root &= torch.rand(root.shape, generator=shown.generator()) < self.share
        return [host(own.nonzero()[:, 0]) for own in root]

    def labels(self, shown: Shown, b: int, roots: list[int]) -> list[int]:
        size = int(shown.live[b].sum())
        text: list[int] = host(shown.text[b, :size])
        features = {tap: shown.features[tap][b, :size] for tap in taps_of(self.drafter)}
        lengths = agreed(self.drafter, text, features, roots, self.most)
        # Agreement with a prompt that follows the answer is worth nothing.
        written: list[bool] = host(shown.answer[b, :size])
        ends = [next((i for i in range(root, size) if not written[i]), size) - 1 - root for root in roots]
        return [min(pair) for pair in zip(lengths, ends, strict=True)]


def uneven(found: Float[Tensor, "N"], k: Float[Tensor, "N"], short: float) -> Float[Tensor, ""]:
    """The mean error, in which drafts that are too short count `short` times; 0 without positions."""
    off = found - k.to(found.dtype)
    return torch.where(off >= 0, off, -short * off).sum() / max(len(k), 1)
