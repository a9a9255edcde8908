"""Round: the B rows that decode together now, with their chance and their one road from logits to distributions."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import host, put
from draftwood.core.proposal import Draw
from draftwood.core.request import Request
from draftwood.core.sampling.keys import fold, word
from draftwood.core.sampling.noise import Keyed, Noise, Places
from draftwood.core.sampling.processors import adjust
from draftwood.core.sampling.shaping import Shaping, top
from draftwood.core.sampling.support import Cut
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError

TARGET = "target"
"""The purpose of the target's own samples: keyed by (seed, position) alone, so any draft leaves them unchanged."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Target model and cache, for drafters that run target layers themselves."""

    model: Any
    cache: Any


class Round:
    """B rows of a round. `lengths` counts known tokens, the root being the last of them."""

    def __init__(
        self,
        slots: Int[Tensor, "B"],
        lengths: Int[Tensor, "B"],
        requests: tuple[Request, ...],
        *,
        origin: dict[int, Float[Tensor, "B H"]] | None = None,
        columns: Int[Tensor, "W"] | None = None,
        target: Borrowed | None = None,
        noise: Noise | None = None,
        stream: str = "",
    ) -> None:
        self.slots, self.lengths, self.requests = slots, lengths, requests
        self.origin = {} if origin is None else origin
        self.columns, self.target = columns, target
        self.noise: Noise = Keyed() if noise is None else noise
        self.stream = stream
        self.device = lengths.device
        self._seeds: Tensor | None = None
        self._shaping: Shaping | None = None
        self._keys: dict[str, Tensor] = {}

    @property
    def batch(self) -> int:
        return len(self.requests)

    @property
    def ids(self) -> list[int]:
        return [r.id for r in self.requests]

    @property
    def shaping(self) -> Shaping:
        if self._shaping is None:
            self._shaping = Shaping([r.params for r in self.requests], self.device)
        return self._shaping

    def roots(self) -> Int[Tensor, "B"]:
        """The newest known token of each row."""
        return put([r.root for r in self.requests], self.device)

    def probs(
        self,
        logits: Float[Tensor, "B K W"],
        tree: TokenTree,
        nodes: Int[Tensor, "B K"],
        ids: Int[Tensor, "W"] | None = None,
        *,
        strict: bool = False,
        ranked: bool = False,
        cut: Cut | None = None,
    ) -> Float[Tensor, "B K W"]:
        """The one road from logits to a distribution, p and q alike: history of each node's own path, then temperature and
        truncation. Options act before any token is drawn, so a mask can never bias a draw.

        Where the options leave no token at all, a draft has nothing to say (a distribution of zeros, no children); `strict`, for
        the target, makes it an OptionError.

        `ranked`, for siblings that differ: a greedy row draws nothing, it takes the best tokens one after another, and a
        one-hot distribution would forget all but one. Such rows keep the distribution of temperature 1.

        `cut`: who makes truncated distributions, if the model can.
        """
        dead: list[tuple[int, int]] = []
        special = [b for b, r in enumerate(self.requests) if not r.params.plain]
        if special:
            logits = logits.clone()
            columns = None if ids is None else host(ids)
            paths = host(tree.take(torch.tensor(special, device=self.device)).path_tokens(nodes[special]))
            for b, row in zip(special, paths, strict=True):
                for k, path in enumerate(row):
                    drafted = [t for t in path if t >= 0]
                    if self.requests[b].ended_by(drafted):
                        continue  # plain decoding never gets here, and a grammar need not know what follows an end
                    try:
                        logits[b, k] = adjust(logits[b, k], self.requests[b], drafted, columns)
                    except OptionError:
                        if strict:
                            raise
                        dead.append((b, k))
        probs = self.shaping.probs(logits, ranked, cut)
        for b, k in dead:
            probs[b, k] = 0.0
        return probs

    def temperature(self) -> list[float] | None:
        """What each row's logits are divided by, if a ranked distribution needs nothing else: for drafters whose models can rank by
        themselves. None: somebody's options ask for `probs`."""
        return self.shaping.temperature() if all(r.params.plain for r in self.requests) else None

    def key(self, purpose: str, at: Int[Tensor, "B *S"], turn: int | Int[Tensor, "S"] = 0) -> Int[Tensor, "B *S"]:
        """The place of one random number. For TARGET, `at` is the depth below the root; otherwise the node."""
        shape = (-1,) + (1,) * (at.ndim - 1)
        if purpose == TARGET and not self.stream:
            return fold(self._begun(purpose).view(shape), (self.lengths - 1).view(shape) + at)
        return fold(self._begun(purpose).view(shape), at, turn)

    def _begun(self, purpose: str) -> Int[Tensor, "B"]:
        """What all keys of one purpose begin with. Folding is most of what a coin costs, so it is done once a round."""
        if purpose not in self._keys:
            key = fold(self.seeds, word(purpose))
            if purpose != TARGET or self.stream:
                key = fold(key, word(self.stream), self.lengths - 1)
            self._keys[purpose] = key
        return self._keys[purpose]

    @property
    def seeds(self) -> Int[Tensor, "B"]:
        if self._seeds is None:
            self._seeds = put([r.seed for r in self.requests], self.device)
        return self._seeds

    def coin(
        self,
        purpose: str,
        at: Int[Tensor, "B *S"],
        prob: Float[Tensor, "B *S"],
        where: Bool[Tensor, "B *S"],
        turn: int | Int[Tensor, "S"] = 0,
    ) -> Bool[Tensor, "B *S"]:
        """True with probability `prob`, in the rows where it is asked."""
        if not some(where):
            return torch.zeros_like(where)
        return self.noise.coin(self.key(purpose, at, turn), prob, where, self.ids)

    def pick(
        self,
        purpose: str,
        at: Int[Tensor, "B *S"],
        probs: Float[Tensor, "B *S V"] | Int[Tensor, "B *S V"],
        where: Bool[Tensor, "B *S"],
        turn: int | Int[Tensor, "S"] = 0,
    ) -> Int[Tensor, "B *S"]:
        """A token drawn from `probs`; it need not be normalised, and whole numbers are counts."""
        return self.noise.pick(self.key(purpose, at, turn), probs, where, self.ids)

    def pick_among(
        self,
        purpose: str,
        at: Int[Tensor, "B"],
        probs: Float[Tensor, "B W"],
        where: Bool[Tensor, "B"],
        places: Places | None,
    ) -> Int[Tensor, "B"]:
        """The same for a distribution over a few tokens: the one that the whole row would have given."""
        if places is not None and not some(where):
            return torch.full_like(at, -1)
        return self.noise.pick(self.key(purpose, at), probs, where, self.ids, places)

    def guess(self, depth: Int[Tensor, "B"], probs: Float[Tensor, "B V"], where: Bool[Tensor, "B"]) -> Int[Tensor, "B"]:
        """What a draft distribution would emit with the target's own uniform of that position: a good guess, never a draw. A greedy
        row's guess is its best token."""
        return self.noise.pick(self.key(TARGET, depth), self.shaping.certain(probs), where, self.ids)

    def sample(
        self, at: Int[Tensor, "B *S"], probs: Float[Tensor, "B *S W"], where: Bool[Tensor, "B *S"], turn: int = 0
    ) -> Int[Tensor, "B *S"]:
        """A token drawn for a draft; a greedy row takes the best one, with no chance in it."""
        return self.pick("draft", at, self.shaping.certain(probs), where, turn)

    def draw(
        self, at: Int[Tensor, "B F"], probs: Float[Tensor, "B F W"], k: int, draw: Draw, where: Bool[Tensor, "B F"]
    ) -> Int[Tensor, "B F k"]:
        """k columns per node in draw order; -1 where a draw without replacement has nothing left.

        GIVEN: the k most probable, and no chance at all.
        """
        if draw is Draw.GIVEN:
            prob, best = top(probs, min(k, probs.shape[-1]))
            columns = torch.where((prob > 0) & where[..., None], best, -1)
            return torch.nn.functional.pad(columns, (0, k - columns.shape[-1]), value=-1)
        drawn: list[Tensor] = []
        left = probs
        for turn in range(k):
            token = self.sample(at, left, where, turn)
            drawn.append(token)
            if draw is Draw.DISTINCT and turn + 1 < k:
                left = left.scatter(-1, token.clamp_min(0)[..., None], 0.0)
        return torch.stack(drawn, dim=-1)

    def inner(self, stream: str) -> "Round":
        """The same rows with noise of their own: for rules that run inside a drafter. Sharing coins with the outer
        rule would bias the output."""
        return Round(
            self.slots,
            self.lengths,
            self.requests,
            origin=self.origin,
            columns=self.columns,
            target=self.target,
            noise=self.noise,
            stream=f"{self.stream}/{stream}",
        )

    def trimmed(self, columns: Int[Tensor, "W"]) -> "Round":
        """The same rows and noise; drafters with a head use these of its rows alone. Trims inside trims meet."""
        other = copy(self)
        outer = self.columns
        columns = columns.to(self.device)
        other.columns = columns if outer is None else columns[torch.isin(columns, outer)]
        return other

    def take(self, rows: list[int]) -> "Round":
        """Some rows of the round, with the same noise."""
        index = torch.tensor(rows, device=self.device, dtype=torch.int64)
        return Round(
            self.slots[index],
            self.lengths[index],
            tuple(self.requests[b] for b in rows),
            origin={tap: x[index] for tap, x in self.origin.items()},
            columns=self.columns,
            target=self.target,
            noise=self.noise,
            stream=self.stream,
        )


def some(mask: Bool[Tensor, "*S"]) -> bool:
    """Whether there is anything to do. On an accelerator it always says yes: asking would stop the device, which is dearer
    than a few operations for nobody. Loops, whose steps are many operations, ask."""
    return mask.device.type != "cpu" or bool(mask.any())
