"""MaxGram: copy what followed the longest end of the text when it first occurred, and go on from there. No model.

Where a copy reaches the end of the text, the longest end of text and copy is looked up anew. A match of a single token is
the text's own bigram: with `min_match` 1 a draft stops early only behind a token that is new in the text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.retrieval.automaton import TextAutomaton
from draftwood.drafters.retrieval.ngram import log_chance
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given, columns
from draftwood.drafters.stateless import Stateless
from draftwood.errors import need_at_least

_State = dict[int, tuple[Request, TextAutomaton]]  # by slot


@dataclass(frozen=True, slots=True)
class MaxGram(Stateless):
    """One chain, of matches of at least `min_match` tokens. A copied token is right with a chance that grows with the length
    of its match, as of `NGram`."""

    min_match: int = 2
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("MaxGram", min_match=(self.min_match, 1))

    def init(self, slots: int) -> _State:
        return {}

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        """Prompts are read chunk by chunk, so that no round has to wait for a whole one."""
        for slot, request, length in zip(rnd.host_slots, rnd.requests, rnd.host_lengths, strict=True):
            self._text(state, slot, request, min(length, request.num_known))

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft in flight is not known yet
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: _State, rnd: Round, limit: Limit) -> list[Retrieved]:
        found: list[Retrieved] = []
        for slot, request, deep, nodes in zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True):
            tokens, logs = self.continued(state, slot, request, (), min(deep, nodes))
            score = [sum(logs[: i + 1]) for i in range(len(logs))]
            found.append(Retrieved(tokens, list(range(len(tokens))), score))
        return found

    def continued(
        self, state: _State, slot: int, request: Request, path: Iterable[int], count: int
    ) -> tuple[list[int], list[float]]:
        """At most `count` tokens behind the text and a drafted path, and the logarithm of each one's chance."""
        text = self._text(state, slot, request, request.num_known)
        match = text.follow(text.end(), path)
        tokens: list[int] = []
        logs: list[float] = []
        while len(tokens) < count and match.length >= self.min_match:
            copied = text.after(match, count - len(tokens))
            if not copied:
                break
            logs += [log_chance(match.length + i) for i in range(len(copied))]
            tokens += copied
            match = text.follow(match, copied)
        return tokens, logs

    @staticmethod
    def _text(state: _State, slot: int, request: Request, length: int) -> TextAutomaton:
        known = state.get(slot)
        if known is None or known[0] is not request:
            known = state[slot] = (request, TextAutomaton())
        text = known[1]
        text.extend(request.known_from(len(text.text), length))
        return text

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.pop(slot, None)
