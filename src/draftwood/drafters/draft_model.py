"""DraftModel: a smaller model writes the guess token by token, through the one growing loop.

It has a cache of its own and no phases: before it drafts it runs whatever known text its cache lacks, so prompts, resumes,
undrafted rounds and the token it has not run after a full acceptance are all the same catch-up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, always
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.score import KnownTokens, assemble
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.drafters.features import MARGIN
from draftwood.drafters.levels import levels_of, rows_at
from draftwood.trees.grow import grow

_Grown = tuple[dict[tuple[int, int], int], int]
"""Where the last draft of a slot staged its nodes, as `HostLevels.children`, and how many known tokens it ran."""


@dataclass(slots=True)
class _State:
    runner: Runner
    owner: dict[int, Request] = field(default_factory=dict[int, Request])
    grown: dict[int, _Grown] = field(default_factory=dict[int, _Grown])


@dataclass(frozen=True, slots=True, eq=False)
class DraftModel:
    """`model` drafts, with a cache of its own. `ids`: token of each row of the model's head where it covers less than the
    vocabulary."""

    model: Runner
    ids: Int[Tensor, "W"] | None = None
    needs: Needs = Needs(trims=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def init(self, slots: int) -> _State:
        return _State(self.model.open(slots, self.model.info.max_positions + MARGIN))

    def admit(self, state: Any, slot: int, request: Request) -> int:
        return request.num_known

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        """Run the same chunk the target has just run, so that no single catch-up is long."""
        idle = [b for b, slot in enumerate(rnd.host_slots) if slot not in state.grown]
        chains = [c for c in self._chains(state, rnd.take(idle)) if len(c.tokens) > 1]
        chains = [KnownTokens(c.slot, c.done, c.tokens[:-1]) for c in chains]
        if not chains:
            return
        tokens = assemble(chains, TokenTree.roots(put([c.tokens[-1] for c in chains], rnd.device)))[0]
        # Cache entries only: the head is expensive.
        state.runner.execute(replace(tokens, want=tokens.want[:0]))
        slots, texts = [c.slot for c in chains], [c.tokens for c in chains]
        state.runner.commit(slots, [list(range(len(text))) for text in texts], texts)

    def _chains(self, state: _State, rnd: Round) -> list[KnownTokens]:
        """Known tokens that this model has not run yet, per sequence, the root being the last."""
        chains: list[KnownTokens] = []
        for slot, length, request in zip(rnd.host_slots, rnd.host_lengths, rnd.requests, strict=True):
            if state.owner.get(slot) is not request:
                self.free(state, [slot])
                state.runner.admit(slot, request.known_from(0, length))
                state.owner[slot] = request
            done = state.runner.length(slot)
            chains.append(KnownTokens(slot, done, request.known_from(done, length)))
        return chains

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        rows, ids = self._columns(rnd)
        if ids is not None and not len(ids):
            return base
        chains = self._chains(state, rnd)
        # At most: a level's frontier is never wider than the budget.
        staged = min(limit.tier.depth * limit.tier.nodes, MARGIN)
        state.runner.reserve([c.slot for c in chains], [len(c.tokens) + staged for c in chains])
        levels, root, passes, seconds = levels_of(chains, rnd.device), base.tree.resize(1), 0, 0.0

        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            nonlocal passes, seconds
            started = perf_counter()
            if passes:
                level = levels.step(tree, frontier)
                x, places = level.x, level.places
            else:
                x, places = assemble(chains, root)[0], list(range(len(chains)))
            logits, hidden = (
                rows_at(found, places, frontier.numel()).view(*frontier.shape, -1)
                for found in self._logits(state, x, rows)
            )
            passes += 1
            seconds += perf_counter() - started
            probs = rnd.probs(logits, tree, frontier.clamp_min(0), ids, ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1), ids), None if limit.proceed is always else hidden

        proposal = grow(base, limit, policy, rnd, step)
        # On an accelerator no entries of nodes are known here: accepted tokens are run again in the next first pass.
        state.grown |= {c.slot: (known, len(c.tokens)) for c, known in zip(chains, levels.children, strict=True)}
        return replace(proposal, pass_seconds=seconds)

    def _columns(self, rnd: Round) -> tuple[Int[Tensor, "W"] | None, Int[Tensor, "W"] | None]:
        """(rows of the model's head to multiply, their tokens); None: all."""
        if self.ids is None or rnd.columns is None:
            return rnd.columns, self.ids if rnd.columns is None else rnd.columns
        rows = torch.isin(self.ids, rnd.columns).nonzero()[:, 0]
        return rows, self.ids[rows]

    def _logits(
        self, state: _State, x: ForwardInput, rows: Int[Tensor, "W"] | None
    ) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]:
        """Logits where the pass wants them, of these rows of the head, and the hidden states they come from."""
        if rows is None:
            output = state.runner.execute(x)
            return output.logits[output.logits_index[x.want]], output.hidden[x.want]
        hidden = state.runner.execute(replace(x, want=x.want[:0])).hidden[x.want]
        return state.runner.head(hidden, ids=rows), hidden

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Keep the entries of the accepted tokens as far as they were run here. The next root is never kept: its own entry
        is what the next draft starts from."""
        slots: list[int] = []
        kept: list[list[int]] = []
        texts: list[list[int]] = []
        paths = outcome.verdict.to_host().paths
        for slot, request, emitted, path in zip(rnd.host_slots, rnd.requests, outcome.emitted, paths, strict=True):
            if slot not in state.grown:
                continue
            children, chain = state.grown.pop(slot)
            entries = list(range(chain))
            for token in emitted[: len(path) - 1]:
                found = children.get((entries[-1], token))
                if found is None:
                    break
                entries.append(found)
            done = state.runner.length(slot)
            slots.append(slot)
            kept.append(entries)
            texts.append([*request.known_from(done, done + chain), *emitted[: len(entries) - chain]])
        state.runner.commit(slots, kept, texts)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            if state.owner.pop(slot, None) is not None:
                state.runner.free([slot])
            state.grown.pop(slot, None)
