"""A chain of tentative tokens: a shallow exit drafts a few, a deeper one reviews them, and so on, until there are enough.

    shallow      root ─ a ─ b            review 0 of (a, b): a is accepted, c stands in the place of b
    deep         root ─ a ─ c            review 1 of (d, e): both are accepted, f comes behind them
    shallow                  └ d ─ e
    deep         root ─ a ─ c ─ d ─ e ─ f           these are what the target verifies

    given        both exits guess with the target's own uniforms, and a review accepts the tokens that they agree on
    drawn        a review is the rule of rejection, with random numbers of its own; so a tentative token has the
                 distribution of the deeper exit, which is reported as its q

Of a rejected token nothing is left: on a host the next token is staged in its entry, on an accelerator, where the number
of reviews and of tokens in each is fixed, its node is dead.
"""

from dataclasses import dataclass, field, replace
from math import log
from time import perf_counter
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import ForwardOutput
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Tier
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree
from draftwood.trees.grow import NO_NUMBERS, not_numbers
from draftwood.trees.spread import joined
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.walk import follow

LEAST = 1e-9  # chances below this count as this


class Exit(Protocol):
    """Distributions after some of a model's layers."""

    @property
    def ids(self) -> Int[Tensor, "W"] | None:
        """Token of each column; None: the whole vocabulary. Both exits of a chain have the same."""
        ...

    def logits(self, tree: TokenTree, first: int) -> Float[Tensor, "B K W"]:
        """Behind every node from column `first` on; nodes that were not run before are run. Of dead nodes any numbers."""
        ...


@dataclass(slots=True, eq=False)
class _Growing:
    """The last column of the tree is the newest tentative token of every sequence that is `open`."""

    tree: TokenTree
    open: Bool[Tensor, "B"]  # sequences that get another review
    depth: Int[Tensor, "B"]  # of the newest tentative token
    q: list[DraftProbs] = field(default_factory=list[DraftProbs])
    q_index: Int[Tensor, "B N"] | None = None


def schedule(tier: Tier, per_review: int) -> tuple[int, int]:
    """Where nothing is read: reviews, and tokens drafted for each. As many as the longest chain takes if all are accepted,
    and no more nodes than fit."""
    room = tier.nodes - 1
    size = max(0, min(per_review, room - 1, tier.depth - 1))
    return min(-(-tier.depth // max(size, 1)), room // (size + 1)), size


def entries(depth: int, per_review: int, device: torch.device) -> int:
    """Staged entries that a chain of `depth` tentative tokens takes behind its root."""
    if host.on_host(device):
        return depth
    size = max(0, min(per_review, depth - 1))
    return -(-depth // max(size, 1)) * (size + 1)


class Tentative:
    """One round's chain in the making. `per_review`: tokens that are drafted for one review."""

    def __init__(self, rnd: Round, limit: Limit, draw: Draw, per_review: int, draft: Exit, review: Exit) -> None:
        self.rnd, self.limit, self.draw, self.per_review = rnd, limit, draw, per_review
        self.draft, self.review = draft, review
        self.given = draw is Draw.GIVEN
        self.on_host = host.on_host(rnd.device)
        self.seconds = 0.0

    def grow(self, base: Proposal) -> Proposal:
        """The chain below a bare root. A step that fails ends it, and what was tentative before stays: dropping it because
        of what came after it would bias the output."""
        fault: str | None = None
        zero = torch.zeros_like(base.tree.tokens[:, 0])
        now = _Growing(base.tree, self.limit.depth > 0, zero)
        now.open = self._goes_on(now, torch.ones_like(base.tree.score[:, 0]))
        most, fixed = schedule(self.limit.tier, self.per_review)
        for number in range(self.limit.tier.depth if self.on_host else most):
            if self.on_host and not bool(now.open.any()):
                break
            try:
                now = self._reviewed(now, number, self._size(now) if self.on_host else fixed)
            except Exception as error:
                fault = NO_NUMBERS if str(error) == NO_NUMBERS else f"propose: {type(error).__name__}: {error}"
                break
        return self._proposal(base, now, fault)

    def _size(self, now: _Growing) -> int:
        """Tokens to draft: no more than are of use to any sequence, whose last token is the reviewer's own."""
        left = torch.where(now.open, self.limit.depth - now.depth, 0)
        return min(self.per_review, int(left.max()) - 1)

    def _reviewed(self, now: _Growing, number: int, size: int) -> _Growing:
        """One review more: tokens that are drafted, those of them that are accepted, and the reviewer's own one."""
        started = perf_counter()
        inner = self.rnd.inner(f"review {number}")
        first = now.tree.num_nodes - 1
        tree, columns, q = self._drafted(now, inner, size)
        logits, p = self._probs(self.review, tree, first)
        local = _local(tree, first, columns, drawn=not self.given)
        if self.given:
            depth = now.depth[:, None] + torch.arange(local.num_nodes, device=p.device)
            verdict = follow(Proposal(local), self.rnd.guess(depth, p, local.live & now.open[:, None]))
            count, column = verdict.count, verdict.next_token
        else:
            drawn = Proposal(local, Draw.IID, *_stored(q, local), max_children=1)
            count, column = self._judged(drawn, logits, inner, now.open)
        column = torch.where(now.open, column, -1)
        chance = p.gather(1, count[:, None, None].expand(-1, 1, p.shape[-1]))[:, 0]
        chance = chance.gather(1, column.clamp_min(0)[:, None])[:, 0]
        tree = self._kept(tree, first, count, columns, p)
        live = column >= 0
        above = (first + count)[:, None]
        score = tree.score.gather(1, above)
        score = score + chance.clamp_min(LEAST).log()[:, None].to(score.dtype) if self.given else score - 1
        tree = tree.append(
            tokens=torch.where(live, self._tokens(column), 0)[:, None], parents=above, live=live[:, None], score=score
        )
        grown = replace(now, tree=tree, open=live, depth=now.depth + count + 1, q=now.q)
        if not self.given:
            grown.q_index = self._named(now, p)
            grown.q = [*now.q, DraftProbs(p.flatten(0, 1), self.review.ids)]
        grown.open = self._goes_on(grown, chance)
        self.seconds += perf_counter() - started
        return grown

    def _drafted(
        self, now: _Growing, inner: Round, size: int
    ) -> tuple[TokenTree, list[Int[Tensor, "B"]], list[Float[Tensor, "B W"]]]:
        """Drafted tokens behind the newest tentative one, as nodes and as columns, and what they were drawn from. A sequence
        gets so many that the reviewer's own token behind them is inside its limit."""
        tree, alive = now.tree, now.open
        columns, q = list[Tensor](), list[Tensor]()
        for j in range(size):
            at = tree.num_nodes - 1
            probs = self._probs(self.draft, tree, at)[1][:, 0]
            alive = alive & (now.depth + j + 2 <= self.limit.depth)
            if self.given:
                column = self.rnd.guess(now.depth + j, probs, alive)
            else:
                column = inner.sample(torch.full_like(now.depth, j), probs, alive)
            alive = alive & (column >= 0)
            if self.on_host and not bool(alive.any()):
                break
            tree = tree.append(
                tokens=torch.where(alive, self._tokens(column), 0)[:, None],
                parents=torch.full_like(column, at)[:, None],
                live=alive[:, None],
                score=tree.score[:, -1:] - 1,
            )
            columns.append(column.clamp_min(0))
            q.append(probs)
        return tree, columns, q

    def _probs(self, leave: Exit, tree: TokenTree, first: int) -> tuple[Float[Tensor, "B K W"], Float[Tensor, "B K W"]]:
        """Logits behind nodes, with the options of each sequence along their paths, and the distributions they give. Of a
        greedy sequence whose tokens are drawn that is the best one; without any token left it is zeros."""
        nodes = torch.arange(first, tree.num_nodes, device=tree.tokens.device).expand(tree.batch, -1)
        logits, failed = self.rnd.adjusted(leave.logits(tree, first), tree, nodes, leave.ids)
        probs = self.rnd.sampler.dense(logits, ranked=self.given)
        if not_numbers(probs.flatten(0, 1)):
            raise ValueError(NO_NUMBERS)
        for b, k in failed:
            probs[b, k], logits[b, k] = 0.0, -torch.inf
        return logits, probs

    def _judged(
        self, proposal: Proposal, logits: Float[Tensor, "B K W"], inner: Round, where: Bool[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
        """How many drafted tokens the rule accepts, and its own one, as a column. On a host only sequences that have a draft
        are asked."""
        asked: list[int] = host.host(where.nonzero()[:, 0]) if self.on_host else list(range(inner.batch))
        some = len(asked) < inner.batch
        index = put(asked, logits.device)
        rnd, own = (inner.take(asked), proposal.take(index)) if some else (inner, proposal)
        flat = logits[index] if some else logits
        places = torch.arange(flat.shape[0] * flat.shape[1], device=flat.device).view(flat.shape[:2])
        flat = flat.flatten(0, 1)
        output = ForwardOutput(flat, flat[:, :1], places.flatten(), token_index=places)
        verdict = Rejection().verify(own, Scored(output, own.tree, rnd, adjusted=True), rnd)
        if not some:
            return verdict.count, verdict.next_token
        zero = torch.zeros_like(where, dtype=torch.int64)
        return zero.index_copy(0, index, verdict.count), (zero - 1).index_copy(0, index, verdict.next_token)

    def _kept(
        self,
        tree: TokenTree,
        first: int,
        count: Int[Tensor, "B"],
        columns: list[Int[Tensor, "B"]],
        p: Float[Tensor, "B K W"],
    ) -> TokenTree:
        """Rejected tokens are dead; given ones are ranked by the chance of their paths."""
        place = torch.arange(tree.num_nodes - first, device=count.device)
        live = torch.cat([tree.live[:, :first], tree.live[:, first:] & (place <= count[:, None])], dim=1)
        score = tree.score
        if self.given and columns:
            chance = p[:, :-1].gather(2, torch.stack(columns, dim=1)[..., None])[..., 0]
            below = score[:, first : first + 1] + chance.clamp_min(LEAST).log().cumsum(1).to(score.dtype)
            score = torch.cat([score[:, : first + 1], below], dim=1)
        return replace(tree, live=live, score=score)

    def _goes_on(self, now: _Growing, own: Float[Tensor, "B"]) -> Bool[Tensor, "B"]:
        """Which sequences get another review. `own`: the chance of the newest token. All that is looked at is drawn already,
        so this stops only future draws."""
        limit, tree = self.limit, now.tree
        may = now.open & (now.depth < limit.depth)
        if limit.least and self.given:
            may = may & (tree.score[:, -1] >= log(limit.least))
        if limit.surer:
            may = may & (own >= put(limit.surer, own.device, own.dtype))
        if limit.watches:
            newest = torch.where(may, tree.num_nodes - 1, -1)[:, None]
            may = may & limit.proceed(tree, newest, None, own[:, None])[:, 0]
        return may

    def _tokens(self, column: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        ids = self.review.ids
        return column.clamp_min(0) if ids is None else ids[column.clamp_min(0)]

    def _named(self, now: _Growing, p: Float[Tensor, "B K W"]) -> Int[Tensor, "B N"]:
        """Which stored distribution the child of each node was drawn from; -1 for the newest."""
        batch, wide = p.shape[:2]
        start = sum(part.num_distributions for part in now.q)
        rows = start + torch.arange(batch * wide, device=p.device).view(batch, wide)
        before = rows[:, :0] if now.q_index is None else now.q_index[:, :-1]
        return torch.cat([before, rows, torch.full_like(rows[:, :1], -1)], dim=1)

    def _proposal(self, base: Proposal, now: _Growing, fault: str | None) -> Proposal:
        """A draft counts as one pass for each of its levels, however many layers each token took: costs are compared by
        how long a chain is."""
        tree, rnd = now.tree, self.rnd
        if tree.num_nodes == 1:
            return base if fault is None else replace(base, fault=fault)
        q_index = torch.full_like(tree.tokens, -1) if now.q_index is None else now.q_index
        copies = torch.zeros_like(tree.tokens)
        if not self.given:
            copies[:, 1:] = tree.live[:, 1:].long()
            if rnd.sampler.any_greedy:  # their tokens were taken, not drawn
                greedy = rnd.sampler.greedy()[:, None]
                copies, q_index = torch.where(greedy, 0, copies), torch.where(greedy, -1, q_index)
        deepest = int((tree.depths() * tree.live).max()) if self.on_host else self.limit.tier.depth
        return Proposal(
            replace(tree, copies=copies),
            self.draw,
            joined(tuple(now.q)),
            q_index,
            passes=base.passes + deepest,
            pass_seconds=self.seconds,
            fault=fault,
            max_depth=min(self.limit.tier.depth, tree.num_nodes - 1),
            max_children=1,
        )


def _local(tree: TokenTree, first: int, columns: list[Int[Tensor, "B"]], drawn: bool) -> TokenTree:
    """The newest tentative token as a root and what was drafted behind it as a chain, in columns instead of tokens."""
    nodes = tree.num_nodes - first
    zero = torch.zeros_like(tree.tokens[:, first:])
    tokens = torch.stack([zero[:, 0], *columns], dim=1)
    parents = torch.arange(-1, nodes - 1, device=tokens.device).expand_as(tokens)
    live = tree.live[:, first:]
    copies = (live & (parents >= 0)).long() if drawn else zero
    return TokenTree(tokens, parents, live, zero, copies, tree.score[:, first:], zero)


def _stored(q: list[Float[Tensor, "B W"]], local: TokenTree) -> tuple[DraftProbs | None, Int[Tensor, "B K"]]:
    """The distributions of a chain's tokens, and which one belongs to the child of each node."""
    none = torch.full_like(local.tokens, -1)
    if not q:
        return None, none
    rows = torch.arange(none.shape[0] * len(q), device=none.device).view(-1, len(q))
    return DraftProbs(torch.stack(q, dim=1).flatten(0, 1)), torch.cat([rows, none[:, :1]], dim=1)
