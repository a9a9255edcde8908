"""Which positions of a batch teach, and what they cost together.

x_0 .. x_t    x_{t+1} .. x_{t+ahead-1}    x_{t+ahead}        ahead = 1: nothing is fed in
read          fed in                      its row is learned
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
    """Flat indices t whose token t + `ahead` the target wrote and the draft can say.

    A kept token stands for a row with most of its mass on kept ones: it was the best of its row, or drawn from it.
    """
    counted: Bool[Tensor, "B T"] = shifted(shown.answer, ahead)
    if places is not None:
        counted = counted & (places[shifted(shown.text, ahead)] >= 0)
    found = counted.flatten().nonzero()[:, 0]
    if share < 1.0:
        found = found[torch.rand(len(found), generator=shown.generator()) < share]
    return found


def prompt_positions(shown: Shown, ahead: int, share: float = 1.0) -> Int[Tensor, "N"]:
    """Flat indices t whose token t + `ahead` stands in a prompt: a share of them, and of those that the run asks for.

    The target has a distribution there as everywhere, and the tokens fed in are known. But the token itself is somebody else's, so
    it says nothing about the row: it need not be kept, and the row is taught as it is over the kept tokens, scaled to one,
    which is the nearest distribution a draft over these tokens can have. Left out is how all texts of a batch begin (the chat
    template's header), there and wherever it comes again: its rows are the same every time, and nobody drafts there. The
    coin is the index's own, so an index that starts a roll-out counts at every depth of it.
    """
    wanted = shown.prompt_share * share
    if not wanted:
        return torch.zeros(0, dtype=torch.int64)
    prompt = shown.live & ~shown.answer & ~_header(shown.text)
    coins = torch.rand(prompt.shape, generator=shown.generator(_PROMPTS))
    return (shifted(prompt, ahead) & (coins < wanted)).flatten().nonzero()[:, 0]


def _header(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Tokens with which all texts begin, wherever they stand in this order, and the one behind them. One text has none."""
    size = int((ids == ids[:1]).all(dim=0).cumprod(dim=0).sum()) if len(ids) > 1 else 0
    if not size:
        return torch.zeros_like(ids, dtype=torch.bool)
    starts = (ids.unfold(1, size, 1) == ids[0, :size]).all(dim=-1)  # [B, T - size + 1]
    # Whether one of them lies at most `size` before.
    near = F.max_pool1d(F.pad(starts.float(), (size, size - 1)), kernel_size=size + 1, stride=1)
    return near.bool()


@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """Flat indices that count at one depth; no index is in both. They are found on the host."""

    answers: Int[Tensor, "N"]
    prompts: Int[Tensor, "M"]

    @property
    def every(self) -> Int[Tensor, "L"]:
        return torch.cat([self.answers, self.prompts])

    def among(self, indices: Int[Tensor, "L"]) -> "Taught":
        """Places in `indices` instead of indices."""
        found = (torch.isin(indices, own, assume_unique=True).nonzero()[:, 0] for own in (self.answers, self.prompts))
        return Taught(*found)

    def to(self, device: torch.device) -> "Taught":
        return Taught(self.answers.to(device, non_blocking=True), self.prompts.to(device, non_blocking=True))


def taught(shown: Shown, places: Int[Tensor, "V"] | None, ahead: int, share: float = 1.0) -> Taught:
    """What counts for rows `ahead`, in answers and in prompts."""
    return Taught(positions(shown, places, ahead, share), prompt_positions(shown, ahead, share))


def imitate(
    y: Float[Tensor, "L d"],
    weight: Float[Tensor, "W d"],
    f: Float[Tensor, "L e"],
    rows: Float[Tensor, "W e"],
    at: Taught,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Soft cross-entropy, its mean over all that counts; the share of right best tokens, of answers and prompts apart:
    `hit` then means the same in every run."""
    at = at.to(y.device)
    loss, hit = soft_cross_entropy(y.index_select(0, at.answers), weight, f.index_select(0, at.answers), rows)
    if not len(at.prompts):
        return loss, {"hit": hit}
    y, f = (x.index_select(0, at.prompts) for x in (y, f))
    other, prompt_hit = soft_cross_entropy(y, weight, f, rows)
    part = len(at.prompts) / len(at.every)
    return (1 - part) * loss + part * other, {"hit": hit, "prompt_hit": prompt_hit}
