"""The positions of a batch that are trained on, and their loss.

x_0 .. x_t    x_{t+1} .. x_{t+ahead-1}    x_{t+ahead}        ahead = 1: no tokens are fed in
read          fed in                      its distribution is learned
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.train_plan import Shown
from draftwood.train.objectives import shifted, soft_cross_entropy

_PROMPTS = 2  # a stream of the step's generator


def positions(shown: Shown, places: Int[Tensor, "V"] | None, ahead: int, share: float = 1.0) -> Int[Tensor, "N"]:
    """Flat indices t whose token t + `ahead` the target wrote and the draft vocabulary holds.

    The token was the best one of its distribution or drawn from it, so if the vocabulary holds it, the vocabulary holds
    most of the probability.
    """
    counted: Bool[Tensor, "B T"] = shifted(shown.answer, ahead)
    if places is not None:
        counted = counted & (places[shifted(shown.text, ahead)] >= 0)
    found = counted.flatten().nonzero()[:, 0]
    if share < 1.0:
        found = found[torch.rand(len(found), generator=shown.generator()) < share]
    return found


def prompt_positions(shown: Shown, ahead: int, share: float = 1.0) -> Int[Tensor, "N"]:
    """Flat indices t whose token t + `ahead` is in a prompt: the run's prompt share of them, times `share`.

    The target has a distribution there too, and the tokens fed in are known. The token itself is not the target's, so it
    need not be in the draft vocabulary: the target's distribution, renormalised over the vocabulary, is learned. Left out
    are the tokens that all texts of a batch begin with (the chat template's header), wherever they occur: they are always
    the same and never drafted. The draw depends on the index alone, so an index that starts a roll-out counts at every
    depth of it.
    """
    wanted = shown.prompt_share * share
    if not wanted:
        return torch.zeros(0, dtype=torch.int64)
    prompt = shown.live & ~shown.answer & ~_header(shown.text)
    coins = torch.rand(prompt.shape, generator=shown.generator(_PROMPTS))
    return (shifted(prompt, ahead) & (coins < wanted)).flatten().nonzero()[:, 0]


def _header(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Marks the tokens that all texts begin with, wherever they occur, and the token after them. None for a single text."""
    size = int((ids == ids[:1]).all(dim=0).cumprod(dim=0).sum()) if len(ids) > 1 else 0
    if not size:
        return torch.zeros_like(ids, dtype=torch.bool)
    starts = (ids.unfold(1, size, 1) == ids[0, :size]).all(dim=-1)  # [B, T - size + 1]
    # Whether a header starts at most `size` tokens before.
    near = F.max_pool1d(F.pad(starts.float(), (size, size - 1)), kernel_size=size + 1, stride=1)
    return near.bool()


@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """Flat indices that are trained on at one depth, computed on the host. No index is in both."""

    answers: Int[Tensor, "N"]
    prompts: Int[Tensor, "M"]

    @property
    def every(self) -> Int[Tensor, "L"]:
        return torch.cat([self.answers, self.prompts])

    def among(self, indices: Int[Tensor, "L"]) -> "Taught":
        """Positions within `indices` instead of flat indices."""
        found = (torch.isin(indices, own, assume_unique=True).nonzero()[:, 0] for own in (self.answers, self.prompts))
        return Taught(*found)

    def to(self, device: torch.device) -> "Taught":
        return Taught(self.answers.to(device, non_blocking=True), self.prompts.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """One output for each index, and what it imitates, in rows of the same order."""

    out: Float[Tensor, "L d"]  # stands for the feature `f` where it is fed back
    y: Float[Tensor, "L d"]  # what the LM head multiplies
    f: Float[Tensor, "L e"]  # the target's feature, whose distribution is imitated
    context: Float[Tensor, "L e"]  # the target's feature that was read
    at: Taught  # the rows that count


def taught(shown: Shown, places: Int[Tensor, "V"] | None, ahead: int, share: float = 1.0) -> Taught:
    """The positions trained on for the token `ahead`, in answers and in prompts."""
    return Taught(positions(shown, places, ahead, share), prompt_positions(shown, ahead, share))


def imitate(
    y: Float[Tensor, "L d"],
    weight: Float[Tensor, "W d"],
    f: Float[Tensor, "L e"],
    rows: Float[Tensor, "W e"],
    at: Taught,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Mean soft cross-entropy over all positions, and the share of correct best tokens, for answers (`hit`) and prompts
    separately, so that `hit` is comparable between runs."""
    at = at.to(y.device)
    loss, hit = soft_cross_entropy(y.index_select(0, at.answers), weight, f.index_select(0, at.answers), rows)
    if not len(at.prompts):
        return loss, {"hit": hit}
    y, f = (x.index_select(0, at.prompts) for x in (y, f))
    other, prompt_hit = soft_cross_entropy(y, weight, f, rows)
    part = len(at.prompts) / len(at.every)
    return (1 - part) * loss + part * other, {"hit": hit, "prompt_hit": prompt_hit}
