"""One pass through a model: its input (ForwardInput, LayerPlan), what parts ask for (Needs), its output (ForwardOutput).

A pass is flat and ragged: T tokens of any slots, each saying which staged cache entry it writes and which staged entry
it follows. Chains, trees, prompt chunks and half-run layers are all the same pass.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import host, put
from draftwood.core.sampling.probs import SamplingKernels

FINAL = -1
"""Tap after the final norm. Taps 0..L: the residual after layer l, 0 being the embedding, L before the final norm."""


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One store of a cache: `heads` x `width` numbers per token, or per slot.

    A per-slot store holds the state of a recurrent layer: one after the committed text, and one after each staged token.
    A state is known only at the end of a text, so a cache with such a store shares no part of a text, only a whole one."""

    name: str
    heads: int
    width: int
    dtype: torch.dtype = torch.float32
    per_slot: bool = False


@dataclass(frozen=True, slots=True)
class Needs:
    """What drafter, verifier and controller need of the target's passes; the engine serves the union."""

    taps: frozenset[int] = frozenset()  # of every token of a pass, in `ForwardOutput`
    origin: frozenset[int] = frozenset()  # of the positions that produced the roots, in `rnd.origin`
    borrow: bool = False  # runs target layers itself, on the target's cache
    trims: bool = False  # multiplies only the LM-head rows of `rnd.columns`, where a round names some
    # Entries of its own for every token in the target's cache, reached by `read_pool` and `write_pool`; parts that name the
    # same pool share it.
    pools: tuple[CacheSpec, ...] = ()
    prediction: bool = False  # drafts from `Request.prediction`; without such a part a prediction is left unused

    @property
    def shown(self) -> frozenset[int]:
        """The taps that the target's passes must output."""
        return self.taps | self.origin

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            taps=self.taps | other.taps,
            origin=self.origin | other.origin,
            borrow=self.borrow or other.borrow,
            trims=self.trims or other.trims,
            pools=tuple(dict.fromkeys(self.pools + other.pools)),
            prediction=self.prediction or other.prediction,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one slot inside a pass, as far as the host knows them without a read. They are adjacent, and their
    staged entries are first, first + 1, ..."""

    slot: int
    start: int  # tokens [start, stop) of the pass
    stop: int
    done: int  # committed entries of the slot
    first: int  # staged entry of the first token
    # Staged entries [0, line) are known text, one behind the other, at positions done, done + 1, ...; all others follow.
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class ForwardInput:
    """The input of one pass. Slot -1 is padding. Entries count from the slot's committed length: entry r of a slot
    with n committed ones lives at n + r, so committing a chain moves nothing.

    Tokens of one slot are adjacent, and a token stands behind the one it follows, or follows one of an earlier pass: a
    recurrent layer makes the state after a token from its parent's, in the order of the pass."""

    ids: Int[Tensor, "T"]
    slots: Int[Tensor, "T"]
    positions: Int[Tensor, "T"]
    entries: Int[Tensor, "T"]  # staged cache entry written
    parents: Int[Tensor, "T"]  # staged entry it follows, -1 = committed text
    want: Int[Tensor, "U"]  # places in T where logits are wanted
    hidden: Float[Tensor, "T H"] | None = None  # enters layers.start instead of the embedding of ids
    spans: tuple[Span, ...] = ()  # the shape of a pass whose tokens the host does not know
    _host_input: "HostInput | None" = field(default=None, init=False, repr=False)  # never handed on to a changed pass

    @staticmethod
    def of(
        host_input: "HostInput",
        positions: list[int],
        want: list[int],
        device: torch.device,
        hidden: Tensor | None = None,
        spans: tuple[Span, ...] = (),
    ) -> "ForwardInput":
        """From lists, which are remembered. `spans`: where the first pass of a slot has more than known text in one line."""
        ids, slots, entries, parents, at = put(
            [host_input.ids, host_input.slots, host_input.entries, host_input.parents, positions], device
        ).unbind(0)
        tokens = ForwardInput(ids, slots, at, entries, parents, put(want, device), hidden, spans)
        object.__setattr__(tokens, "_host_input", host_input)
        return tokens

    def to_host(self) -> "HostInput":
        """The columns that a cache records; a host read only if the pass was made on a device."""
        if self._host_input is not None:
            return self._host_input
        return HostInput(*host(torch.stack([self.ids, self.slots, self.entries, self.parents])))

    def starting_from(self, hidden: Float[Tensor, "T H"]) -> "ForwardInput":
        """The same tokens, entering a layer with these hidden states."""
        other = replace(self, hidden=hidden)
        object.__setattr__(other, "_host_input", self._host_input)  # the lists hold for it too
        return other

    def part(self, places: list[int]) -> "ForwardInput":
        """All tokens of some slots, by their places, without logits."""
        at = put(places, self.ids.device)
        columns = (x.index_select(0, at) for x in (self.ids, self.slots, self.positions, self.entries, self.parents))
        taken = set(places)
        spans: list[Span] = []
        for s in self.spans:
            if s.start in taken:
                start = spans[-1].stop if spans else 0
                spans.append(replace(s, start=start, stop=start + s.stop - s.start))
        return ForwardInput(*columns, want=at[:0], spans=tuple(spans))

    def known(self) -> list[tuple[int, int, int, int]]:
        """Of the known tokens of each slot: (slot, first place in the pass, first position in the text, how many)."""
        if self.spans:
            return [(s.slot, s.start, s.done, s.line) for s in self.spans if s.first == 0]
        columns, positions = self.to_host(), host(self.positions)
        found: list[tuple[int, int, int, int]] = []
        for place, (slot, position) in enumerate(zip(columns.slots, positions, strict=True)):
            if slot < 0:
                continue
            if not found or found[-1][0] != slot:
                found.append((slot, place, position, 0))
            slot, start, first, size = found[-1]
            if place == start + size and position == first + size:
                found[-1] = slot, start, first, size + 1
        return found

    @property
    def size(self) -> int:
        return self.ids.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class HostInput:
    """Columns of a pass as lists."""

    ids: list[int]
    slots: list[int]
    entries: list[int]
    parents: list[int]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Which layers run, what they leave out, which attentions read the same input."""

    start: int = 0
    stop: int | None = None
    together: tuple[range, ...] = ()
    skip_attention: frozenset[int] = frozenset()
    skip_mlp: frozenset[int] = frozenset()

    def groups(self, num_layers: int) -> list[range]:
        """The layers that run, in order: alone, or with those whose attentions read the same input. A group ends where the
        plan does; one that begins before it is none."""
        stop = num_layers if self.stop is None else self.stop
        ends = {r.start: r.stop for r in self.together}
        found: list[range] = []
        at = self.start
        while at < stop:
            end = min(max(at + 1, ends.get(at, 0)), stop)
            found.append(range(at, end))
            at = end
        return found


ALL = LayerPlan()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The tokens of one slot inside a pass, and what they may see: all committed entries, and `visible` staged ones."""

    slot: int
    start: int  # tokens [start, stop) of the pass
    stop: int
    committed: int
    staged: int  # staged entries in use after this pass
    first_entry: int  # entries written are first_entry, first_entry + 1, ... if `dense`, else ForwardInput.entries
    dense: bool
    visible: Bool[Tensor, "t staged"] | None  # None: one token that sees every staged entry


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOutput:
    """What a pass computed. `logits_index`: place in T -> its row of logits; `token_index`: node -> place in T, filled in
    where the tree is known."""

    logits: Float[Tensor, "U V"]
    hidden: Float[Tensor, "T H"]  # the residual at layers.stop
    logits_index: Int[Tensor, "T"]  # -1 where no logits were wanted
    features: dict[int, Float[Tensor, "T H"]] = field(default_factory=dict[int, Tensor])
    token_index: Int[Tensor, "B N"] | None = None
    host_index: list[list[int]] | None = None  # the same as lists
    tokens: ForwardInput | None = None  # what was asked, so that features can be found by slot and position
    # The place of the greatest logit, from models that find it on the way; -1: the logits are not numbers.
    best: Int[Tensor, "U"] | None = None
    kernels: SamplingKernels | None = None  # of the backend that made the logits, if it has any

    def take(self, sequences: list[int]) -> "ForwardOutput":
        """The same pass, seen by some sequences of the round."""
        index, lists = self.token_index, self.host_index
        return replace(
            self,
            token_index=None if index is None else index[put(sequences, index.device)],
            host_index=None if lists is None else [lists[b] for b in sequences],
        )


def logit_places(want: Int[Tensor, "U"], size: int) -> Int[Tensor, "T"]:
    """The inverse of `want`: for each place of the pass its row of logits, or -1."""
    if size == 1 and want.shape[0] == 1:  # every round of plain decoding
        return want
    at = torch.full((size,), -1, dtype=torch.int64, device=want.device)
    at[want] = torch.arange(want.shape[0], device=want.device)
    return at
