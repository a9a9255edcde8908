"""Parts that store each token's id in a pool of the target's cache, and check after every round that it holds the text:
pool entries are committed along the path, shared with a prefix and freed like the target's.

    PoolRule      writes staged entries, between the pass and the commit
    PoolDrafter   writes committed ones, or only checks them; calls `filled`
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import CacheSpec, ForwardInput, ForwardOutput, Needs
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Drafter, Runner, TreePolicy, Verifier
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Outcome, Verdict

TOKENS = CacheSpec("tokens", 1, 1, torch.int64)


@dataclass(frozen=True, slots=True)
class PoolRule:
    """Any rule. Before it runs, all tokens of the pass are written to their staged entries."""

    rule: Verifier
    spec: CacheSpec = TOKENS

    @property
    def needs(self) -> Needs:
        return self.rule.needs | Needs(pools=(self.spec,))

    @property
    def lossless(self) -> bool:
        return self.rule.lossless

    @property
    def draws(self) -> frozenset[Draw]:
        return self.rule.draws

    @property
    def shapes(self) -> frozenset[Shape]:
        return self.rule.shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        assert rnd.target is not None and target.output.tokens is not None
        write_staged(rnd.target, self.spec.name, target.output.tokens)
        return self.rule.verify(proposal, target, rnd)


def write_staged(runner: Runner, name: str, x: ForwardInput) -> None:
    """Write the token of each staged entry of a pass. Tokens without room go to the last entry, which no text reads."""
    slots = {slot for slot, *_ in x.known()}
    done = put([runner.length(slot) if slot in slots else 0 for slot in range(max(slots) + 2)], x.ids.device)
    like = runner.read_pool(name, x.slots[:0], x.entries[:0])
    values = x.ids[:, None, None].to(like.dtype).expand(-1, *like.shape[1:])
    runner.write_pool(name, x.slots, done[x.slots] + x.entries, values)


@dataclass(frozen=True, slots=True)
class PoolDrafter:
    """Any drafter. `lag` None: PoolRule writes the entries, this part only checks them. A number: this part writes committed
    entries itself, always so many tokens late."""

    drafter: Drafter
    lag: int | None = None
    spec: CacheSpec = TOKENS

    @property
    def needs(self) -> Needs:
        return self.drafter.needs | Needs(pools=(self.spec,))

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def init(self, slots: int) -> "_State":
        return _State(self.drafter.init(slots))

    def admit(self, state: "_State", slot: int, request: Request) -> int:
        return self.drafter.admit(state.inner, slot, request)

    def begin(self, state: "_State", rnd: Round, output: ForwardOutput) -> None:
        assert output.token_index is not None
        self.drafter.begin(state.inner, rnd, output)
        unseen = output.token_index.shape[0] == 0  # no sequence had a root, so no rule ran
        for slot, request in zip(rnd.host_slots, rnd.requests, strict=True):
            text = request.known_from(0, min(_runner(rnd).length(slot), request.num_known))
            self._follow(state, rnd, slot, text, output, 0 if unseen and self.lag is None else self.lag)

    def propose(self, state: "_State", rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        return self.drafter.propose(state.inner, rnd, base, limit, policy)

    def commit(self, state: "_State", rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.drafter.commit(state.inner, rnd, outcome, output)
        for b, (slot, request) in enumerate(zip(rnd.host_slots, rnd.requests, strict=True)):
            known, kept = rnd.host_lengths[b], _runner(rnd).length(slot)
            emitted = [t for t in host(outcome.tokens[b]) if t >= 0]
            text = [*request.known_from(0, known), *emitted[: kept - known]]
            assert len(text) == kept, f"slot {slot} holds {kept} entries, the text has {len(text)} tokens"
            self._follow(state, rnd, slot, text, output, self.lag)

    def _follow(
        self, state: "_State", rnd: Round, slot: int, text: list[int], output: ForwardOutput, lag: int | None
    ) -> None:
        """Write the entries that are due, then check all entries."""
        assert output.tokens is not None
        runner = _runner(rnd)
        if slot not in state.filled:  # a shared prefix is filled already
            state.filled[slot] = next(at for other, _, at, _ in output.tokens.known() if other == slot)
        first = state.filled[slot]
        due = state.filled[slot] = max(first, len(text) - (lag or 0))
        if lag is not None:
            new = torch.arange(first, due, device=rnd.device)
            values = _column(text[first:due], rnd.device).expand(-1, self.spec.heads, self.spec.width)
            runner.write_pool(self.spec.name, torch.full_like(new, slot), new, values.to(self.spec.dtype))
        runner.filled(slot, self.spec.name, due)
        every = torch.arange(due, device=rnd.device)
        held = runner.read_pool(self.spec.name, torch.full_like(every, slot), every)
        if not torch.equal(held, _column(text[:due], rnd.device).to(held.dtype).expand_as(held)):
            raise AssertionError(f"the pool of slot {slot} holds {host(held[:, 0, 0])}, the text is {text[:due]}")

    def free(self, state: "_State", slots: Sequence[int]) -> None:
        self.drafter.free(state.inner, slots)
        for slot in slots:
            state.filled.pop(slot, None)


@dataclass(slots=True)
class _State:
    inner: Any
    filled: dict[int, int] = field(default_factory=dict[int, int])  # entries of each slot


def _runner(rnd: Round) -> Runner:
    assert rnd.target is not None
    return rnd.target


def _column(tokens: list[int], device: torch.device) -> Int[Tensor, "n 1 1"]:
    return put(tokens, device)[:, None, None]
