"""FeatureText: what a net that reads the target's features keeps of the text, for the drafters that run it.

It keeps cache entries of its own, one per pair (feature of index t, token t + 1), and only for pairs whose feature is the
target's: what it wrote behind its own guesses is dropped every round, and the accepted tokens are run again with the
target's features before the next guess.

    known   x0 x1 x2 x3      root x3
    output    f0 f1 f2         pairs (f0,x1) (f1,x2) (f2,x3)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, ForwardOutput, HostInput
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens
from draftwood.core.verdict import Outcome
from draftwood.drafters.nets.runners.runner import FeatureModel

MARGIN = 1024  # staged entries beyond the longest text
MANY = 64  # features that may wait to be fused


@dataclass(slots=True)
class TextSlot:
    """One slot: its request, and features that have no cache entry yet, from index `cache.length` on: fused ones, then the
    target's own, one tensor for each tap, which are fused together when they are needed."""

    owner: Request
    waiting: Float[Tensor, "k d"] | None = None
    apart: list[list[Float[Tensor, "k H"]]] = field(default_factory=list[list[Tensor]])
    unfused: int = 0  # features that are held apart

    @property
    def held(self) -> int:
        return (0 if self.waiting is None else len(self.waiting)) + self.unfused

    def add(self, fused: Float[Tensor, "k d"]) -> None:
        self.waiting = fused if self.waiting is None else torch.cat([self.waiting, fused])

    def add_apart(self, parts: list[Float[Tensor, "k H"]], count: int) -> None:
        self.apart.append(parts)
        self.unfused += count


@dataclass(slots=True)
class TextState:
    runner: FeatureModel
    slots: dict[int, TextSlot] = field(default_factory=dict[int, TextSlot])
    trimmed: tuple[Tensor, Tensor] | None = None  # columns asked for last, and those of them that the head has


@dataclass(frozen=True, slots=True, eq=False)
class FeatureText:
    """`model` runs the head, with a cache for texts as long as the target's."""

    model: FeatureModel
    draws: frozenset[Draw] = frozenset(Draw)

    def init(self, slots: int) -> TextState:
        return TextState(self.model.open(slots, self.model.max_positions + MARGIN))

    def admit(self, state: TextState, slot: int, request: Request) -> int:
        """Pairs that have entries already; from there on the target must output its features again."""
        self.free(state, [slot])
        known = request.known
        # An entry is known by its pair's token, so the first token has none, and yet every feature depends on it.
        shared = state.runner.admit(slot, known[1:], before=(*request.before, *known[:1]))
        state.slots[slot] = TextSlot(request)
        return shared

    def begin(self, state: TextState, rnd: Round, output: ForwardOutput) -> None:
        """Features of a chunk: all pairs but the newest become entries at once, so no draft waits for a whole prompt."""
        x = output.tokens
        assert x is not None
        wanted = dict(zip(rnd.host_slots, rnd.host_lengths, strict=True))
        places: list[int] = []
        counts: dict[int, int] = {}
        for slot, start, done, size in x.known():
            if slot not in wanted:
                continue
            first = state.runner.length(slot) + state.slots[slot].held
            new = range(max(first, done), min(done + size, wanted[slot]))  # positions whose features are not here yet
            assert first >= done or not new, "a feature is missing"
            places += [start + position - done for position in new]
            if new:
                counts[slot] = len(new)
        if not counts:
            return
        self._fuse(state, list(counts))
        shown = self._shown(output, put(places, rnd.device))
        fused = self.model.fuse(shown).split(list(counts.values()))
        for slot, part in zip(counts, fused, strict=True):
            state.slots[slot].add(part)
        self._run(state, [slot for slot in counts if state.slots[slot].held > 1])

    def _shown(self, output: ForwardOutput, places: Int[Tensor, "k"]) -> list[Float[Tensor, "k H"]]:
        return [output.features[tap].index_select(0, places) for tap in self.model.taps]

    def _fuse(self, state: TextState, slots: Sequence[int]) -> None:
        """Fuse what these slots hold apart, in one call."""
        held = {slot: state.slots[slot].apart for slot in slots if state.slots[slot].apart}
        parts = [part for each in held.values() for part in each]
        if not parts:
            return
        taps = parts[0] if len(parts) == 1 else [torch.cat(list(tap)) for tap in zip(*parts, strict=True)]
        fused, sizes = self.model.fuse(taps), [state.slots[slot].unfused for slot in held]
        for slot, own in zip(held, fused.split(sizes), strict=True):
            state.slots[slot].apart, state.slots[slot].unfused = [], 0
            state.slots[slot].add(own)

    @staticmethod
    def _whole_pairs(state: TextState, slot: int) -> int:
        """Waiting features whose next token is part of the text; a stop condition may have cut tokens that were accepted."""
        own = state.slots[slot]
        return min(own.held, own.owner.num_known - 1 - state.runner.length(slot))

    def _run(self, state: TextState, slots: list[int]) -> None:
        """Entries for all waiting pairs but the newest."""
        if not slots:
            return
        chains = {slot: state.slots[slot].held - 1 for slot in slots}
        state.runner.execute(self.chains(state, chains, wanted=False))
        self._keep(state, chains)
        for slot, count in chains.items():
            own = state.slots[slot]
            assert own.waiting is not None
            own.waiting = own.waiting[count:].clone()

    @staticmethod
    def _keep(state: TextState, counts: dict[int, int]) -> None:
        """Commit the first `count` staged pairs of each slot."""
        texts: list[list[int]] = []
        for slot, count in counts.items():
            first = state.runner.length(slot) + 1
            texts.append(state.slots[slot].owner.known_from(first, first + count))
        state.runner.commit(list(counts), [list(range(count)) for count in counts.values()], texts)

    def chains(
        self,
        state: TextState,
        counts: dict[int, int],
        wanted: bool = True,
        roots: Float[Tensor, "B n d"] | None = None,
        ahead: int = 1,
    ) -> ForwardInput:
        """The first `count` waiting pairs of each slot, logits wanted at the last of each. `roots`: inputs of the roots
        behind them, whose next tokens are not known, for a model that reads none. Where a root has several, all of them
        follow the pairs, and logits are wanted at the `ahead` behind the first."""
        ids: list[int] = []
        at: list[int] = []
        host_input = HostInput(ids, [], [], [])
        hidden: list[Tensor] = []
        want: list[int] = []
        for b, (slot, count) in enumerate(counts.items()):
            own, done = state.slots[slot], state.runner.length(slot)
            assert own.waiting is not None
            more = 0 if roots is None else roots.shape[1]
            ids += own.owner.known_from(done + 1, done + 1 + count)
            hidden.append(own.waiting[:count])
            if roots is not None:
                ids += [own.owner.root] * more
                hidden.append(roots[b])
            at += range(done, done + count + more)
            host_input.slots.extend([slot] * (count + more))
            host_input.entries.extend(range(count + more))
            host_input.parents.extend([*range(-1, count - 1), *[count - 1] * more])
            want += [len(ids) - 1] if more < 2 else range(len(ids) - more + 1, len(ids) - more + 1 + ahead)
        joined = hidden[0] if len(hidden) == 1 else torch.cat(hidden)
        return ForwardInput.of(host_input, at, want if wanted else [], joined.device, joined)

    def ready(
        self, state: TextState, rnd: Round, limit: Limit, staged: int | None = None
    ) -> tuple[dict[int, int], Int[Tensor, "W"] | None] | None:
        """Waiting pairs by slot, fused, with room for a draft behind them (of `staged` entries, by default as many as a tree
        may need), and the tokens that may be drafted. None: before its first pass a text has no features to draft from, or
        no token is asked for."""
        held = {slot: state.slots[slot].held for slot in rnd.host_slots if slot in state.slots}
        counts = {
            slot: held[slot]
            for slot, length in zip(rnd.host_slots, rnd.host_lengths, strict=True)
            if held.get(slot) and state.runner.length(slot) + held[slot] == length - 1
        }
        only = self._only(state, rnd)
        if not counts or (only is not None and not len(only)):
            return None
        self._fuse(state, list(counts))
        if staged is None:  # at most: a level's frontier is never wider than the budget
            staged = limit.tier.depth * limit.tier.nodes
        state.runner.reserve(list(counts), [count + min(staged, MARGIN) for count in counts.values()])
        return counts, only

    def keep_pairs(self, state: TextState, counts: dict[int, int]) -> None:
        """Entries behind guesses go. The pairs of known tokens stay: their features are the target's own."""
        self._keep(state, counts)
        for slot, count in counts.items():
            own = state.slots[slot]
            own.waiting = None if own.waiting is None or count == own.held else own.waiting[count:]

    @staticmethod
    def known(state: TextState, rnd: Round, counts: dict[int, int]) -> list[KnownTokens | None]:
        """What the first pass runs of each sequence of the round; None: nothing, because it has no features yet."""
        found: list[KnownTokens | None] = []
        for slot in rnd.host_slots:
            done, count = state.runner.length(slot) if slot in counts else 0, counts.get(slot, 0)
            text = state.slots[slot].owner.known_from(done + 1, done + 1 + count) if count else []
            found.append(KnownTokens(slot, done, text) if count else None)
        return found

    def _only(self, state: TextState, rnd: Round) -> Int[Tensor, "W"] | None:
        """Tokens the round asks for and the head has; None: all it has. The same tensor for the same columns, so that a
        model finds what it made for them."""
        if rnd.columns is None:
            return None
        if state.trimmed is None or state.trimmed[0] is not rnd.columns:
            own = rnd.columns if self.model.ids is None else rnd.trimmed(self.model.ids).columns
            assert own is not None
            state.trimmed = rnd.columns, own
        return state.trimmed[1]

    def commit(self, state: TextState, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """The target's features of the root and of every accepted token."""
        places: list[int] = []
        taken: list[tuple[TextSlot, int]] = []
        paths, where = outcome.verdict.to_host().paths, output.host_index
        assert where is not None
        for b, (slot, length) in enumerate(zip(rnd.host_slots, rnd.host_lengths, strict=True)):
            own = state.slots.get(slot)
            if own is None:
                continue
            skip = state.runner.length(slot) + own.held - (length - 1)  # begin may have taken the root's already
            nodes = paths[b][max(skip, 0) :]
            places += [where[b][node] for node in nodes]
            taken.append((own, len(nodes)))
        if not places:
            return
        # Fused when the next draft needs them: a text that is not drafted for some rounds costs less.
        every = output.tokens is not None and places == list(range(output.tokens.size))
        shown = (
            [output.features[tap] for tap in self.model.taps] if every else self._shown(output, put(places, rnd.device))
        )
        counts = [count for _, count in taken]
        parted = [tap.split(counts) for tap in shown] if len(counts) > 1 else [[tap] for tap in shown]
        for (own, count), *parts in zip(taken, *parted, strict=True):
            if count:
                own.add_apart(parts, count)
        self._fuse(state, [slot for slot in rnd.host_slots if slot in state.slots and state.slots[slot].unfused > MANY])

    def free(self, state: TextState, slots: Sequence[int]) -> None:
        """Waiting pairs become entries first: a later request may begin with this text, and what has no entry here must be
        shown again by the target."""
        pairs = {slot: self._whole_pairs(state, slot) for slot in slots if slot in state.slots}
        pairs = {slot: count for slot, count in pairs.items() if count > 0}
        try:
            if pairs:
                self._fuse(state, list(pairs))
                state.runner.execute(self.chains(state, pairs, wanted=False))
                self._keep(state, pairs)
        finally:  # a pass that fails must not keep the slot
            for slot in slots:
                if state.slots.pop(slot, None) is not None:
                    state.runner.free([slot])
