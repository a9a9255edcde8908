"""Trains an acceptance net: how likely the token is accepted that a draft model has just read.

At every position t of the target's answers the draft, which has read the answer before it, draws y_t ~ q. Rejection sampling
accepts it with probability a_t = min(1, p(y_t) / q(y_t)), the label. Then the draft reads a mixture z, the answer's own
tokens in some places and its draws in all others, as it does when it drafts behind its own tokens:

    z_t = x_t with probability `mixed`, else y_t          the net reads the hidden state at z_t where z_t = y_t

    loss = sum [ -a log A - weight (1 - a) log(1 - A) ] / sum [ a + weight (1 - a) ]
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.lengths.decision import states
from draftwood.drafters.nets.modules.acceptance import REJECTED, AcceptanceNet

_DRAWS, _MIXED = 3, 4  # streams of the step's generator
_CHUNK = 256  # positions whose distributions exist at the same time


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """`draft` is the draft model, in the backend it will run in; `ids` are the tokens of its LM-head rows. `share`: of the
    positions that are used in a step."""

    net: AcceptanceNet
    draft: Runner
    ids: Int[Tensor, "W"] | None = None
    mixed: float = 0.15
    weight: float = REJECTED
    share: float = 1.0
    needs: Needs = Needs(taps=frozenset({FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places, drawn, q = self.draws(shown)
        z, taken = self.mixture(shown, places, drawn)
        h = states(self.draft, z, shown.live).flatten(0, 1)
        if self.share < 1:
            coins = torch.rand(len(places), generator=shown.generator())
            taken = taken & (coins < self.share).to(taken.device)
        at = taken.nonzero()[:, 0]
        label = self.labels(shown, places[at], drawn[at], q[at])
        logit = self.net.logit(h[places[at]].to(self.net.last.weight.dtype))
        mean = weighted_mean(label, self.weight)
        constant = weighted_entropy(torch.special.logit(mean.expand_as(label), eps=1e-6), label, self.weight)
        kept = label.mean() if len(label) else label.sum()
        yield "net", weighted_entropy(logit, label, self.weight), {"kept": kept, "constant": constant}

    @torch.no_grad()
    def draws(self, shown: Shown) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"], Float[Tensor, "N"]]:
        """Flat places of the answers' tokens, a token that the draft draws in each, and the probability it gives to it."""
        places = self._places(shown)
        h = states(self.draft, shown.ids, shown.live).flatten(0, 1)[places - 1]
        noise = shown.generator(_DRAWS, h.device)
        tokens, chances = [places[:0]], [h.new_zeros(0, dtype=torch.float32)]
        for part in h.split(_CHUNK) if len(h) else ():
            q = self.draft.head(part).float().softmax(-1)
            y = torch.multinomial(q, 1, generator=noise)
            tokens.append((y if self.ids is None else self.ids.to(y.device)[y])[:, 0])
            chances.append(q.gather(1, y)[:, 0])
        return places, torch.cat(tokens), torch.cat(chances)

    @torch.no_grad()
    def labels(
        self, shown: Shown, places: Int[Tensor, "N"], drawn: Int[Tensor, "N"], q: Float[Tensor, "N"]
    ) -> Float[Tensor, "N"]:
        """min(1, p / q) of the draws in these places."""
        f, rows = shown.features[FINAL].flatten(0, 1)[places - 1], shown.rows(None)
        found = [q[:0]]
        for part in torch.arange(len(f), device=f.device).split(_CHUNK) if len(f) else ():
            p = (f[part].to(rows.dtype) @ rows.T).float().softmax(-1)
            found.append((p.gather(1, drawn[part, None])[:, 0] / q[part]).clamp_max(1.0))
        return torch.cat(found)

    def _places(self, shown: Shown) -> Int[Tensor, "N"]:
        counted = shown.answer.clone()
        counted[:, :1] = False  # nothing stands before it
        return counted.flatten().nonzero()[:, 0].to(shown.ids.device)

    def mixture(
        self, shown: Shown, places: Int[Tensor, "N"], drawn: Int[Tensor, "N"]
    ) -> tuple[Int[Tensor, "B T"], Tensor]:
        """The texts with draws in most places of the answers, and in which of the places a draw stands."""
        flat = shown.ids.flatten().clone()
        coins = torch.rand(len(places), generator=shown.generator(_MIXED)).to(flat.device)
        flat[places] = torch.where(coins < self.mixed, flat[places], drawn)
        return flat.view_as(shown.ids), flat[places] == drawn


def weighted_entropy(logit: Float[Tensor, "N"], label: Float[Tensor, "N"], weight: float) -> Float[Tensor, ""]:
    """Binary cross-entropy in which rejection counts `weight` times; 0 without positions."""
    label = label.to(logit.dtype)
    lost = -label * F.logsigmoid(logit) - weight * (1 - label) * F.logsigmoid(-logit)
    total = (label + weight * (1 - label)).sum()
    return lost.sum() / total.clamp_min(torch.finfo(total.dtype).tiny)


def weighted_mean(label: Float[Tensor, "N"], weight: float) -> Float[Tensor, ""]:
    """The constant with the lowest weighted entropy."""
    total = (label + weight * (1 - label)).sum()
    return label.sum() / total.clamp_min(torch.finfo(total.dtype).tiny)
