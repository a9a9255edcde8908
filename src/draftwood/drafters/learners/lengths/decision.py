"""Trains the decision net of a draft model: the probability that a token drawn from the draft here is accepted.

The draft reads the target's answers, as it does after accepted tokens. At index t it has a hidden state h and a
distribution q. Rejection sampling accepts x ~ q with probability min(1, p(x) / q(x)), which can serve as the label of h. Its
mean over all x, sum min(p, q), gives the same gradient on average without the noise of the draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, ForwardInput, Needs
from draftwood.core.protocols import Runner
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import taught
from draftwood.drafters.nets.modules.decision import DecisionNet

_DRAWS = 3  # a stream of the step's generator
_CHUNK = 256  # positions whose distributions exist at the same time
_PASS = 512  # tokens of one pass of the draft


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """`draft` is the draft model, in the backend it will run in; `ids` are the tokens of its LM-head rows. A net this small
    needs only a `share` of the positions. `drawn`: label by one draw instead of the mean."""

    net: DecisionNet
    draft: Runner
    ids: Int[Tensor, "W"] | None = None
    share: float = 1.0
    drawn: bool = False
    needs: Needs = Needs(taps=frozenset({FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"net": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        f = shown.features[FINAL]
        at = taught(shown, None, 1, self.share).every.to(f.device, non_blocking=True)
        h = states(self.draft, shown.ids, shown.live).flatten(0, 1)[at]
        label = self.labels(shown, h, f.flatten(0, 1)[at])
        logit = self.net.logit(h.to(self.net.first.weight.dtype))
        loss = _entropy(logit, label)
        # The loss of predicting the mean everywhere: a useful net has a lower one.
        mean = label.mean() if len(label) else label.sum()
        constant = _entropy(torch.special.logit(mean.expand_as(label), eps=1e-6), label)
        yield "net", loss, {"kept": mean, "constant": constant}

    @torch.no_grad()
    def labels(self, shown: Shown, h: Float[Tensor, "N d"], f: Float[Tensor, "N H"]) -> Float[Tensor, "N"]:
        """The probability that a token drawn from q is accepted: of one x ~ q, or the mean."""
        noise, rows = shown.generator(_DRAWS, h.device), shown.rows(None)
        found = [h.new_zeros(0, dtype=torch.float32)]
        for at in range(0, len(h), _CHUNK):
            part = slice(at, at + _CHUNK)
            q = self.draft.head(h[part]).float().softmax(-1)
            p = (f[part].to(rows.dtype) @ rows.T).float().softmax(-1)
            p = p if self.ids is None else p[:, self.ids.to(p.device)]  # over the draft vocabulary
            if self.drawn:
                x = torch.multinomial(q, 1, generator=noise)
                found.append((p.gather(1, x) / q.gather(1, x)).clamp_max(1.0)[:, 0])
            else:
                found.append(torch.minimum(p, q).sum(-1))
        return torch.cat(found)


@torch.no_grad()
def states(draft: Runner, ids: Int[Tensor, "B T"], live: Bool[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
    """Final hidden states of a model over padded sequences, one sequence after another."""
    whole: list[Tensor] = []
    length = ids.shape[1]
    for text, size in zip(ids, live.sum(1).tolist(), strict=True):
        runner = draft.open(1, length)
        runner.admit(0, text[:size].tolist())
        parts: list[Tensor] = []
        for chunk in text[:size].split(_PASS):
            at, first = torch.arange(len(chunk), device=ids.device), sum(map(len, parts))
            x = ForwardInput(chunk, torch.zeros_like(chunk), at + first, at, at - 1, want=at[:0])
            runner.reserve([0], [len(chunk)])
            parts.append(runner.execute(x).hidden)
            runner.commit([0], [list(range(len(chunk)))], [chunk.tolist()])
        whole.append(F.pad(torch.cat(parts), (0, 0, 0, length - size)))
    return torch.stack(whole).clone()  # a backend's inference tensors cannot be used in autograd


def _entropy(logit: Float[Tensor, "N"], label: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """Mean binary cross-entropy; 0 without positions."""
    total = F.binary_cross_entropy_with_logits(logit, label.to(logit.dtype), reduction="sum")
    return total / max(len(label), 1)
