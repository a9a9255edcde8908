"""Adds an adversarial term to the loss of another learner: a discriminator tells its distributions from the target's.

    y_p = sum_v p(v) E[v]    y_q = sum_v q(v) E[v]      mean embeddings, so that no token has to be drawn
    L_D = - log D(f, y_p) - log(1 - D(f, y_q))          trains the discriminator, y_q without its gradient
    L_G = L + weight * (- log D(f, y_q))                trains the head, the discriminator without its gradient

Both are computed from the same outputs before either steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.core.forward import Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.parallel import Parallel
from draftwood.drafters.learners.positions import Guess
from draftwood.drafters.learners.unrolling.expected_embedding import expected_embedding
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.modules.discriminator import Discriminator

JUDGE = "judge"  # the discriminator's parameter group
_JUDGED = 4  # a stream of the step's generator


@dataclass(frozen=True, slots=True, eq=False)
class Adversarial:
    """`share`: of the positions that are judged; `after`: the share of the stage that `base` trains alone first."""

    base: Unrolled | Parallel
    judge: Discriminator
    weight: float
    share: float = 0.25
    after: float = 0.1

    @property
    def needs(self) -> Needs:
        return self.base.needs

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {**self.base.groups(), JUDGE: list(self.judge.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        head = next(iter(self.base.groups()))
        guesses = list(self.base.guesses(shown))
        total, figures = self.base.loss_of(shown, guesses)
        if progress < self.after:
            yield head, total, figures
            return
        f, real, drafted = self.judged(shown, guesses)
        of_real, of_drafted = self.judge(f, real), self.judge(f, drafted.detach())
        right = torch.cat([of_real > 0, of_drafted < 0]).float()
        told = {"judge_right": right.sum() / max(len(right), 1)}
        yield JUDGE, _mean(F.softplus(-of_real)) + _mean(F.softplus(of_drafted)), told
        fooled = _mean(F.softplus(-self.judge(f, drafted, fixed=True)))
        yield head, total + self.weight * fooled, figures

    def judged(
        self, shown: Shown, guesses: list[Guess]
    ) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N H"], Float[Tensor, "N H"]]:
        """Contexts, and the mean embeddings of the target's distribution and of the draft's, of a share of the positions."""
        keep, source = self.base.keep, shown.generator(_JUDGED)
        rows, embedding = shown.rows(keep), shown.embed(keep.to(shown.ids.device))
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for guess in guesses:
            every = guess.at.every
            at = every[torch.rand(len(every), generator=source) < self.share].to(rows.device)
            context, f, y = (x.index_select(0, at) for x in (guess.context, guess.f, guess.y))
            with torch.no_grad():
                real = expected_embedding(f, rows, embedding)
            found.append((context, real, expected_embedding(y, rows, embedding)))
        context, real, drafted = (torch.cat(list(each)) for each in zip(*found, strict=True))
        return context, real, drafted


def _mean(x: Float[Tensor, "N"]) -> Float[Tensor, ""]:
    """0 without positions."""
    return x.sum() / max(len(x), 1)
