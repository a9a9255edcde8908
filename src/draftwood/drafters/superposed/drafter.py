"""Superposed: a small model writes k drafts at once, one pass over one token per level, and they become one tree.

The known text is caught up with as the draft model does it. Entries of superposed tokens are no token's own, so none of them
is kept: an accepted token is run again with the next known text. Counts of n-grams and the choice of drafts are on the host,
so on an accelerator every level waits for one read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.processors import adjust
from draftwood.core.score import assemble
from draftwood.core.verdict import Outcome
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given, columns
from draftwood.drafters.superposed.beam import Beam, Draft
from draftwood.drafters.superposed.ngrams import Counts, TextCounts
from draftwood.drafters.superposed.superposition import Superposition, mixed_input, ranked


@dataclass(slots=True)
class _State:
    model: Any
    texts: dict[int, tuple[Request, TextCounts]] = field(default_factory=dict[int, tuple[Request, TextCounts]])


@dataclass(frozen=True, slots=True, eq=False)
class Superposed:
    """`counts`: where n-grams are counted; None: in the text of each request. Nodes are given; a node's score is the log of
    the probability that the passes gave its path."""

    model: DraftModel
    superposition: Superposition
    counts: Counts | None = None
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    @property
    def needs(self) -> Needs:
        return self.model.needs

    def init(self, slots: int) -> _State:
        return _State(self.model.init(slots))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        return self.model.admit(state.model, slot, request)

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        self.model.begin(state.model, rnd, output)

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        rows, ids = self.model.columns(rnd)
        if base.tree.num_nodes > 1 or rnd.in_flight or (ids is not None and not len(ids)):
            return base  # what follows a draft is not known yet
        started, runner = perf_counter(), state.model.runner
        chains = state.model.chains(rnd)
        runner.reserve([c.slot for c in chains], [len(c.tokens) + limit.tier.depth for c in chains])
        state.model.stage(chains, [{}] * len(chains))
        counts = self._counts(state, rnd)
        beams = [self.superposition.begin() for _ in chains]
        drafted = [b for b, nodes in enumerate(limit.budgets) if nodes]
        x, at, passes = assemble(chains, base.tree)[0], list(range(len(chains))), 0
        for level in range(limit.tier.depth):
            if level:
                last = [len(chains[b].tokens) - 1 + level for b in drafted]
                slots, positions = [chains[b].slot for b in drafted], [chains[b].done for b in drafted]
                positions = [done + entry for done, entry in zip(positions, last, strict=True)]
                x, at = mixed_input(runner, [beams[b] for b in drafted], slots, last, positions), drafted
            logits = self.model.logits(state.model, x, rows)[0]
            passes += 1
            if at != drafted:  # a sequence without a budget is only caught up with
                logits = logits[put(drafted, logits.device)]
            self._advance(rnd, beams, drafted, logits, ids, counts)
            drafted = [b for b in drafted if limit.depths[b] > level + 1 and beams[b].alive]
            if not drafted:
                break
        found = [_tree(beam, nodes) for beam, nodes in zip(beams, limit.budgets, strict=True)]
        proposal = as_given(base, found, columns(found, rnd, limit))
        return replace(proposal, passes=passes, pass_seconds=perf_counter() - started)

    def _advance(
        self,
        rnd: Round,
        beams: list[Beam],
        drafted: list[int],
        logits: Float[Tensor, "R W"],
        ids: Int[Tensor, "W"] | None,
        counts: Sequence[Counts | None],
    ) -> None:
        """One token more in these beams, in place. Options of a request act along the path of each draft, so such a request
        has as many distributions as drafts; any other one has one."""
        parts: list[Tensor] = []
        for b, own in zip(drafted, logits, strict=True):
            request, alive = rnd.requests[b], beams[b].alive
            if request.params.plain:
                parts.append(own[None])
                continue
            adjusted, failed = adjust(own.expand(len(alive), -1), request, [draft.tokens for draft in alive], ids)
            adjusted[list(failed)] = -torch.inf
            parts.append(adjusted)
        most = max(self.superposition.kept, 2 * self.superposition.k)
        best = ranked(torch.cat(parts), most, ids)
        for b, part in zip(drafted, parts, strict=True):
            own, best = best[: len(part)], best[len(part) :]
            request, alive = rnd.requests[b], beams[b].alive
            own = own * len(alive) if len(part) == 1 else own
            beams[b] = self.superposition.advanced(beams[b], own, counts[b], request.known_tail, request.ended_by)

    def _counts(self, state: _State, rnd: Round) -> list[Counts | None]:
        """Of each sequence: the given ones, or those of its own text."""
        if self.counts is not None or not self.superposition.alpha:
            return [self.counts] * rnd.batch
        found: list[Counts | None] = []
        for slot, request in zip(rnd.host_slots, rnd.requests, strict=True):
            owner, text = state.texts.get(slot, (None, TextCounts()))
            if owner is not request:
                text = TextCounts()
                state.texts[slot] = request, text
            text.read(request.known_from(text.size, request.num_known))
            found.append(text)
        return found

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self.model.commit(state.model, rnd, outcome, output)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        self.model.free(state.model, slots)
        for slot in slots:
            state.texts.pop(slot, None)


def _tree(beam: Beam, nodes: int) -> Retrieved:
    """The drafts with their common beginnings merged, as far as the budget goes."""
    number: dict[tuple[int, ...], int] = {(): 0}
    parents: list[int] = []
    score: list[float] = []
    drafts: list[Draft] = sorted((*beam.finished, *beam.alive), key=lambda draft: -draft.score)
    for draft in drafts:
        for size, chance in enumerate(draft.chances, 1):
            if draft.tokens[:size] not in number:
                parents.append(number[draft.tokens[: size - 1]])
                number[draft.tokens[:size]] = len(number)
                score.append(chance)
    tokens = [path[-1] for path in number if path]
    return Retrieved(tokens, parents, score).best(nodes)
