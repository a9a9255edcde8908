"""Review: a draft model judges drafts of others, each in one pass, and appends its own token.

    text   .. r          r is the root
    path      a b        drafted so far; b has not been run yet
    draft         x y    one pass over b x y: x accepted, y not    ->  x z, z being the model's own token

Every token of the passes has an entry of its own behind the one it follows, so a rejected token is seen by none that comes
after it. Entries stay staged until the target's verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, HostInput, Span
from draftwood.core.host import host, put
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import rows_at
from draftwood.drafters.on_features.feature_text import MARGIN
from draftwood.drafters.text_cache import Staged, TextCache
from draftwood.errors import DrafterError
from draftwood.trees.grow import NO_NUMBERS, not_numbers

Asked = tuple[int, list[int], list[int]]
"""A sequence of the round, its path so far and a draft behind it."""

Opinion = tuple[int, float, float]
"""A model's own token (-1: none), that one's probability, and the probability of the drafted token."""

LEAST = 1e-9  # probabilities below this count as this


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What a review leaves of one draft: accepted tokens, then the reviewer's own one if it has any; and the logarithm of
    the chance that the reviewer gives each."""

    tokens: list[int]
    logs: list[float]
    accepted: int


class Model(Protocol):
    """What a review needs of a draft model."""

    def columns(self, rnd: Round) -> tuple[Int[Tensor, "W"] | None, Int[Tensor, "W"] | None]: ...
    def logits(
        self, state: TextCache, x: ForwardInput, rows: Int[Tensor, "W"] | None
    ) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]: ...


@runtime_checkable
class Reviewer(Drafter, Protocol):
    """A drafter whose model can review."""

    def reviews(self, state: Any, rnd: Round, limit: Limit, lenience: float) -> "Reviews": ...


class Reviews:
    """The reviews of one model in one round. A token is accepted if it is the model's own one, or if the model gives it a
    probability above 1 / `lenience`; with a lenience of 1 only its own are.

    The model's own token is what its distribution gives with the target's own uniform of that position: the best guess of
    what the target emits. Nothing is claimed about how it was drawn, so only rules that ignore q may judge the result."""

    def __init__(self, model: Model, state: TextCache, rnd: Round, limit: Limit, lenience: float) -> None:
        self._model, self._state, self._rnd, self._lenience = model, state, rnd, lenience
        self._rows, self._ids = model.columns(rnd)
        self._chains = state.chains(rnd)
        most = min((limit.tier.depth + 1) ** 2, MARGIN)
        self._room = [len(c.tokens) + most for c in self._chains]
        state.runner.reserve([c.slot for c in self._chains], self._room)
        self._used = [0] * len(self._chains)  # staged entries
        self._children: list[dict[tuple[int, int], int]] = [{} for _ in self._chains]
        self.passes, self.seconds = 0, 0.0

    def review(self, each: Sequence[Asked]) -> list[Reviewed]:
        """One pass over some drafts. Nothing is left of a draft that finds no room in the cache."""
        started = perf_counter()
        fits = [self._used[b] + len(self._chains[b].tokens) + len(p) + len(d) <= self._room[b] for b, p, d in each]
        found = [Reviewed([], [], 0)] * len(each)
        asked = [one for one, fit in zip(each, fits, strict=True) if fit]
        if asked and (self._ids is None or len(self._ids)):
            logits = self._model.logits(self._state, self._pass(asked), self._rows)[0]
            self.passes += 1
            if not_numbers(logits):
                raise DrafterError(NO_NUMBERS)
            judged = iter(self._judged(logits, asked))
            found = [next(judged) if fit else none for fit, none in zip(fits, found, strict=True)]
        self.seconds += perf_counter() - started
        return found

    def staged(self) -> dict[int, Staged]:
        """Where the tokens of all passes were staged, by slot."""
        each = zip(self._chains, self._children, self._used, strict=True)
        return {c.slot: (children, len(c.tokens)) for c, children, used in each if used}

    def _pass(self, asked: list[Asked]) -> ForwardInput:
        """What was not run yet of text, path and draft; logits are wanted from the path's last token on."""
        columns, positions, want, spans = HostInput([], [], [], []), list[int](), list[int](), list[Span]()
        for b, path, draft in asked:
            chain = self._chains[b]
            text, known = [*chain.tokens, *path, *draft], len(chain.tokens)
            first, entry = self._staged(b, path)  # text[:first] has entries, the last of them is `entry`
            start, size = len(columns.ids), len(text) - first
            # Only known text is seen by all that follows it: where a draft branches is not known yet.
            spans.append(Span(chain.slot, start, start + size, chain.done, self._used[b], known))
            for i in range(first, len(text)):
                own = self._used[b]
                self._used[b] += 1
                if i >= known:
                    self._children[b][entry, text[i]] = own
                columns.ids.append(text[i])
                columns.slots.append(chain.slot)
                columns.entries.append(own)
                columns.parents.append(entry)
                positions.append(chain.done + i)
                entry = own
            want += range(len(columns.ids) - len(draft) - 1, len(columns.ids))
        return ForwardInput.of(columns, positions, want, self._rnd.device, spans=tuple(spans))

    def _staged(self, b: int, path: list[int]) -> tuple[int, int]:
        """How many tokens of text and path need not be run again, and the entry of the last of them. The path's last token
        is always run, because its logits are wanted."""
        known = len(self._chains[b].tokens)
        if not self._used[b]:
            return 0, -1
        if not path:
            return known - 1, known - 2
        entry, count = known - 1, known
        for token in path[:-1]:
            found = self._children[b].get((entry, token))
            if found is None:
                break
            entry, count = found, count + 1
        return count, entry

    def _judged(self, logits: Float[Tensor, "U W"], asked: list[Asked]) -> list[Reviewed]:
        """Accepted prefixes and own tokens. Where options depend on the path, positions are judged one after another, as far
        as tokens are accepted: a grammar need not know what follows a token that it forbids."""
        rnd = self._rnd if len(asked) == self._rnd.batch else self._rnd.take([b for b, _, _ in asked])
        wide = 1 + max(len(draft) for _, _, draft in asked)
        places = [r * wide + j for r, (_, _, draft) in enumerate(asked) for j in range(len(draft) + 1)]
        padded = rows_at(logits, places, len(asked) * wide).view(len(asked), wide, -1)
        texts = [[*path, *draft] for _, path, draft in asked]
        tree = _chains(rnd, texts)
        ends = [(len(path), len(path) + len(draft)) for _, path, draft in asked]
        depth = put([[min(first + j, last) for j in range(wide)] for first, last in ends], rnd.device)
        tokens = put([[*draft, *[0] * (wide - len(draft))] for _, _, draft in asked], rnd.device)
        if all(request.params.plain for request in rnd.requests):
            opinions = self._opinions(rnd, padded, tree, depth, tokens)
            return [self._accepted(draft, each) for (_, _, draft), each in zip(asked, opinions, strict=True)]
        found: list[list[Opinion]] = [[] for _ in asked]
        alive = list(range(len(asked)))
        for j in range(wide):
            alive = [r for r in alive if j <= len(asked[r][2]) and self._accepts_all(asked[r][2][:j], found[r])]
            if not alive:
                break
            at = put(alive, rnd.device)
            part = padded[at, j : j + 1], tree.take(at), depth[at, j : j + 1], tokens[at, j : j + 1]
            for r, each in zip(alive, self._opinions(rnd.take(alive), *part), strict=True):
                found[r] += each
        return [self._accepted(draft, each) for (_, _, draft), each in zip(asked, found, strict=True)]

    def _opinions(
        self,
        rnd: Round,
        logits: Float[Tensor, "B K W"],
        tree: TokenTree,
        depth: Int[Tensor, "B K"],
        tokens: Int[Tensor, "B K"],
    ) -> list[list[Opinion]]:
        """What the model says at nodes of chains, whose numbers are their depths: its own token, that one's probability, and
        the probability of the drafted token."""
        probs = rnd.probs(logits, tree, depth, self._ids, ranked=True)
        own = rnd.guess(depth, probs, (probs > 0).any(-1))
        if self._ids is None:
            chance = probs.gather(-1, tokens[..., None])[..., 0]
            named = own
        else:
            chance = (probs * (tokens[..., None] == self._ids)).sum(-1)
            named = torch.where(own >= 0, self._ids[own.clamp_min(0)], -1)
        best = probs.gather(-1, own.clamp_min(0)[..., None])[..., 0]
        whole = host(torch.stack([named.double(), best.double(), chance.double()], dim=-1))
        return [[(int(token), p, q) for token, p, q in each] for each in whole]

    def _accepts(self, token: int, opinion: Opinion) -> bool:
        own, _, chance = opinion
        return token == own or chance * self._lenience > 1

    def _accepts_all(self, draft: list[int], opinions: list[Opinion]) -> bool:
        return all(self._accepts(token, opinion) for token, opinion in zip(draft, opinions, strict=True))

    def _accepted(self, draft: list[int], opinions: list[Opinion]) -> Reviewed:
        tokens: list[int] = []
        logs: list[float] = []
        for token, opinion in zip(draft, opinions, strict=False):
            if not self._accepts(token, opinion):
                break
            tokens.append(token)
            logs.append(_log(opinion[2]))
        own, chance, _ = opinions[len(tokens)]
        if own < 0:
            return Reviewed(tokens, logs, len(tokens))
        return Reviewed([*tokens, own], [*logs, _log(chance)], len(tokens))


def _chains(rnd: Round, texts: list[list[int]]) -> TokenTree:
    """Each list as a chain below its root."""
    parents, score = [list(range(len(text))) for text in texts], [[0.0] * len(text) for text in texts]
    return Proposal.roots(rnd.roots()).with_given(texts, parents, score).tree


def _log(chance: float) -> float:
    return min(log(max(chance, LEAST)), 0.0)
