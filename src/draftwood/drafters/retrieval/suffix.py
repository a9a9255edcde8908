"""Suffix: copy what most often followed the last tokens, in this text and in earlier answers. Longer matches draft more.

No model, microseconds. The counts are those of a suffix tree in C++, or of a plain index where there is no compiler.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.retrieval.answers import Answers
from draftwood.drafters.retrieval.retrieved import Retrieved, as_given, columns
from draftwood.drafters.stateless import Stateless
from draftwood.errors import OptionError, need_at_least
from draftwood.kernels.cpu.suffix_index import NativeIndex
from draftwood.kernels.suffix_index import DraftRule, PlainIndex, SuffixDraft, SuffixIndex
from draftwood.models.backends.choose import open_library

PLAIN_TOKENS = 1 << 15
"""Tokens of shared answers where there is no compiler: a draft from the plain index visits every match."""


@dataclass(slots=True)
class _Text:
    """The index of one request: its prompt and its answer so far."""

    request: Request
    index: SuffixIndex
    size: int = 0

    def read(self, stop: int) -> None:
        if stop > self.size:
            self.index.append(0, self.request.known_from(self.size, stop))
            self.size = stop


@dataclass(slots=True)
class _State:
    make: Callable[[], SuffixIndex]
    answers: Answers | None
    texts: dict[int, _Text] = field(default_factory=dict[int, _Text])  # by slot

    def text(self, slot: int, request: Request) -> _Text:
        known = self.texts.get(slot)
        if known is None or known.request is not request:
            known = self.texts[slot] = _Text(request, self.make())
        return known


@dataclass(frozen=True, slots=True)
class Suffix(Stateless):
    """After a match of m tokens at most floor(factor * m + offset) tokens are drafted. Of all matches, in the request's own
    text and in the answers of its tenant, the draft of the highest expected number of accepted tokens is taken.

    A node's probability is the product of count(child) / count(node) along its path, at least `p_min`; its score is the
    logarithm. `mode`: the most frequent continuation, or a tree of the most probable tokens. A match and its draft have
    `depth` tokens at most. `share`: whether answers of other requests of the same tenant are used, `max_tokens` of them.
    """

    depth: int = 24
    mode: Literal["path", "tree"] = "path"
    factor: float = 1.0
    offset: float = 0.0
    p_min: float = 0.1
    share: bool = True
    max_tokens: int = 1_000_000
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("Suffix", depth=(self.depth, 2), max_tokens=(self.max_tokens, 1))
        if self.mode not in ("path", "tree"):
            raise OptionError(f"Suffix: mode cannot be {self.mode!r}\nhint: path or tree")
        if not (0 <= self.p_min <= 1 and 0 <= self.factor < math.inf and -math.inf < self.offset < math.inf):
            given = f"p_min={self.p_min}, factor={self.factor}, offset={self.offset}"
            raise OptionError(f"Suffix cannot have {given}\nhint: p_min from 0 to 1, factor at least 0")

    def init(self, slots: int) -> _State:
        library = open_library()
        make = partial(PlainIndex, self.depth) if library is None else partial(NativeIndex, library, self.depth)
        most = self.max_tokens if library is not None else min(self.max_tokens, PLAIN_TOKENS)
        return _State(make, Answers(make, most) if self.share else None)

    def admit(self, state: _State, slot: int, request: Request) -> int:
        if state.answers is not None:
            state.answers.watch(request)
        return request.num_known

    def begin(self, state: _State, rnd: Round, output: ForwardOutput) -> None:
        """Prompts are read chunk by chunk, so that no round has to wait for a whole one."""
        for slot, request, length in zip(rnd.host_slots, rnd.requests, rnd.host_lengths, strict=True):
            state.text(slot, request).read(min(length, request.num_known))

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        return as_given(base, found := self.retrieve(state, rnd, limit), columns(found, rnd, limit))

    def retrieve(self, state: _State, rnd: Round, limit: Limit) -> list[Retrieved]:
        if state.answers is not None:
            for request in rnd.requests:
                state.answers.watch(request)
            state.answers.update()
        sequences = zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True)
        drafts = [self._draft(state, slot, request, depth, nodes) for slot, request, depth, nodes in sequences]
        return [Retrieved(draft.tokens, draft.parents, [math.log(prob) for prob in draft.probs]) for draft in drafts]

    def _draft(self, state: _State, slot: int, request: Request, depth: int, nodes: int) -> SuffixDraft:
        text = state.text(slot, request)
        text.read(request.num_known)
        if depth == 0 or nodes == 0:
            return SuffixDraft()
        context = request.known_tail((), self.depth)
        rule = DraftRule(nodes, depth, self.factor, self.offset, self.p_min, self.mode == "tree")
        own = text.index.draft(context, rule)
        shared = None if state.answers is None else state.answers.index(request.params.tenant)
        if shared is None:
            return own
        other = shared.draft(context, rule)
        return other if other.score > own.score else own

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.texts.pop(slot, None)
        if state.answers is not None:
            state.answers.update()
