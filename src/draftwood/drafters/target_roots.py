"""TargetRoots: the first tokens of a draft are drawn from the target's own distribution, which the last pass left behind.

    last pass     ... x ── y ── z        y was kept, z was not: p after y is known, and so is what z left of it
    next round    y ─┬─ a ── drafted     root y; a, b from norm((p - q)+) after y, given to the rule
                     └─ b ── drafted

It takes a rule that ends its path one token early, so that the new root has been scored. Where it has not, as in the first
round, the drafter draws these tokens itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.protocols import Drafter, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome


@dataclass(slots=True)
class _State:
    inner: Any
    # By slot: the request, how long its text then was, the distribution of its next token.
    left: dict[int, tuple[Request, int, Tensor]] = field(default_factory=dict[int, tuple[Request, int, Tensor]])


@dataclass(frozen=True, slots=True, eq=False)
class TargetRoots:
    """Everything below the first level is `drafter`'s. Sequences at temperature 0 begin with its best tokens."""

    drafter: Drafter

    @property
    def needs(self) -> Needs:
        # The children of the first level come from the target's own distribution, over the whole vocabulary.
        return replace(self.drafter.needs, trims=False)

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def init(self, slots: int) -> _State:
        return _State(self.drafter.init(slots))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        state.left.pop(slot, None)
        return self.drafter.admit(state.inner, slot, request)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        self.drafter.begin(state.inner, rnd, output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        found: list[Tensor | None] = []
        for slot, length, request in zip(rnd.host_slots, rnd.host_lengths, rnd.requests, strict=True):
            owner, then, probs = state.left.get(slot, (None, 0, None))
            found.append(probs if owner is request and then == length else None)
        known = next((probs for probs in found if probs is not None), None)
        if known is not None:
            probs = torch.stack([torch.zeros_like(known) if probs is None else probs for probs in found])
            policy = _Begun(policy, probs, probs.sum(-1) > 0)
        return self.drafter.propose(state.inner, rnd, base, limit, policy)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.drafter.commit(state.inner, rnd, outcome, output)
        proposal, verdict = outcome.proposal, outcome.verdict
        tree = proposal.tree
        before = verdict.path.gather(1, verdict.count[:, None])[:, 0]
        end = tree.child(before, verdict.next_token)  # the new root, where it was scored
        assert output.token_index is not None
        node = end.clamp_min(0)[:, None]
        logits = output.logits[output.logits_index[output.token_index.gather(1, node)]]
        p = rnd.probs(logits, tree, node, ranked=True)[:, 0]
        # Runs are as long as they can be, so what was drawn below their end was rejected.
        rejected = (tree.children(end) & (tree.copies > 0)).any(1)
        if proposal.q is not None:
            index = proposal.q_indices().gather(1, end.clamp_min(0)[:, None])[:, 0]
            whole = TokenProbs(p, p.shape[1])
            q = proposal.q.over(whole, torch.where(rejected, index, -1))
            p = whole.put(whole.residual(q), rejected).prob
        each = zip(rnd.host_slots, rnd.host_lengths, verdict.count.tolist(), end.tolist(), strict=True)
        for b, (slot, length, count, at) in enumerate(each):
            state.left.pop(slot, None)
            if at >= 0:
                state.left[slot] = rnd.requests[b], length + count + 1, p[b].clone()

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.left.pop(slot, None)
        self.drafter.free(state.inner, slots)


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A policy whose first level comes from `probs` in the sequences that have one; as many nodes as it would draw."""

    policy: TreePolicy
    probs: Float[Tensor, "B V"]
    there: Bool[Tensor, "B"]

    @property
    def draw(self) -> Draw:
        return self.policy.draw

    @property
    def shape(self) -> Shape:
        return self.policy.shape

    def passes(self, limit: Limit) -> int | None:
        return self.policy.passes(limit)

    def reads(self, limit: Limit) -> int | None:
        return None

    def max_frontier(self, limit: Limit) -> int | None:
        return None

    def max_children(self, limit: Limit) -> int:
        return self.policy.max_children(limit)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return self.policy.start(base, limit, rnd)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        if growth.tree.num_nodes > 1:
            return self.policy.expand(growth, q, allowed, limit, rnd)
        there = self.there[:, None]
        grown = self.policy.expand(growth, q, allowed & ~there, limit, rnd)
        tree, count = grown.tree, grown.tree.num_nodes - 1
        probs, asked, greedy = self.probs[:, None], allowed & there, rnd.sampler.column("greedy", torch.bool)[:, None]
        drawn = rnd.draw(growth.frontier, probs, count, self.draw, asked & ~greedy)
        best = rnd.draw(growth.frontier, probs, count, Draw.GIVEN, asked & greedy)
        tokens = torch.where(greedy, best[:, 0], drawn[:, 0])
        mine = there & (tokens >= 0)
        parts = {
            "tokens": torch.where(mine, tokens, tree.tokens[:, 1:]),
            "live": torch.where(there, mine, tree.live[:, 1:]),
            "copies": torch.where(there, 0, tree.copies[:, 1:]),
            "source": torch.where(there, -1, tree.source[:, 1:]),  # the target's own, as its roots are
        }
        changed = {name: torch.cat([getattr(tree, name)[:, :1], part], dim=1) for name, part in parts.items()}
        tree = replace(tree, **changed)
        nodes = torch.arange(1, tree.num_nodes, device=tokens.device)
        return replace(grown, tree=tree, frontier=torch.where(tree.live[:, 1:], nodes, -1))

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return self.policy.select(tree, limit)
