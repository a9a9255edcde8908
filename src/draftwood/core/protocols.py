"""The protocols: the methods that each part of the engine must have. Nothing else is here."""

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from draftwood.core.forward import CacheSpec, ForwardInput, ForwardOutput, LayerPlan, Needs, Segment
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit, Load
from draftwood.core.model_info import ModelInfo
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from draftwood.core.batch import Batch, Room
    from draftwood.core.request import Request
    from draftwood.core.scored import Scored


class Drafter(Protocol):
    """Guesses candidates. Parts are frozen; what changes lives in the state made by `init`, owned by the engine."""

    @property
    def needs(self) -> Needs: ...
    @property
    def draws(self) -> frozenset[Draw]:
        """The draws it can supply; retrieval has only GIVEN."""
        ...

    def init(self, slots: int) -> Any: ...
    def admit(self, state: Any, slot: int, request: "Request") -> int:
        """A request gets a slot. How many of its first tokens need not be shown: those whose features a drafter still
        has, or all tokens if it uses none."""
        ...

    def begin(self, state: Any, rnd: Round, output: ForwardOutput) -> None:
        """After every chunk of known tokens; tokens of a shared prefix are never shown, as far as `admit` allowed it."""
        ...

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: "TreePolicy") -> Proposal:
        """A tree that begins with `base`. The base is a bare root, or another drafter's tree, or (in the overlapped loop)
        what was drafted ahead for this round. If `rnd.in_flight`, the base is being scored: it must not change, and only
        AHEAD nodes may be added below it."""
        ...

    def commit(self, state: Any, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Every round, drafted or not. Node numbers may have changed since `propose`: walk by token."""
        ...

    def free(self, state: Any, slots: Sequence[int]) -> None: ...


class TreePolicy(Protocol):
    """Shapes the tree. Growing may depend on everything drawn, cutting only on `score`."""

    @property
    def draw(self) -> Draw: ...
    @property
    def shape(self) -> Shape: ...
    def passes(self, limit: Limit) -> int | None:
        """Draft passes that growth may ask for; None: one for each level."""
        ...

    def reads(self, limit: Limit) -> int | None:
        """How many tokens of a distribution matter, the best ones: a drafter need not supply more; None: all of them."""
        ...

    def max_frontier(self, limit: Limit) -> int | None:
        """No more nodes of a level get children, the best ones; None: any number. 1: a chain, with leaves beside it where
        more than one token of a distribution matters."""
        ...

    def max_children(self, limit: Limit) -> int:
        """No node gets more children than this; of merged draws each one counts."""
        ...

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth: ...
    def expand(
        self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round
    ) -> Growth: ...
    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        """The nodes that the pass will score; closed under parents and earlier drawn siblings."""
        ...


class Verifier(Protocol):
    """Keeps a path. `draws` and `shapes` are what the rule is exact for (or defined for, if it is lossy)."""

    @property
    def needs(self) -> Needs: ...
    @property
    def lossless(self) -> bool: ...
    @property
    def draws(self) -> frozenset[Draw]: ...
    @property
    def shapes(self) -> frozenset[Shape]: ...
    def verify(self, proposal: Proposal, target: "Scored", rnd: Round) -> Verdict: ...


class LengthController(Protocol):
    """Sizes the next tree."""

    @property
    def needs(self) -> Needs: ...
    def init(self, slots: int) -> Any: ...
    def plan(self, state: Any, rnd: Round, load: Load) -> Limit: ...
    def update(self, state: Any, rnd: Round, outcome: Outcome) -> None: ...
    def free(self, state: Any, slots: Sequence[int]) -> None: ...


class Scheduler(Protocol):
    """Decides who runs. No phases: the work of a sequence is its known tokens that are not in the cache."""

    def add(self, request: "Request") -> None: ...
    def next(self, room: "Room") -> "Batch": ...
    def settle(self, batch: "Batch", outcome: Outcome | None) -> "list[Request]":
        """The finished."""
        ...

    def preempt(self) -> "int | None":
        """A slot to give up for room, its request back in the queue; None if only one sequence is left."""
        ...

    def drop(self, request: "Request") -> "int | None":
        """Forget a request; the slot it held, if any."""
        ...

    @property
    def waiting(self) -> int: ...
    @property
    def running(self) -> "dict[int, Request]": ...


class Watcher(Protocol):
    """Called at the end of a round: metrics, labels, online learning. Its tensors are copies, gradients are enabled, and it
    may refresh the weights of a drafter: which tokens are accepted depends on them, the text does not."""

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None: ...


class Recorder(Protocol):
    """Called at the end of a round, after the watchers: only reads. Its tensors are the round's own, which later rounds
    overwrite, so it copies what it keeps; it makes no host wait for a device."""

    def record(self, rnd: Round, outcome: Outcome) -> None: ...


class Slots(Protocol):
    """The slots of a cache: entries of every token a model has run, committed ones first, then staged ones that a rule may
    still drop."""

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """Make a slot ready for this text; how many of its entries are already present, and at most `most`. `before`: tokens
        in front of it that have no entries; texts after different ones share nothing."""
        ...

    def prefer(self, tokens: Sequence[int], free: Sequence[int], before: Sequence[int] = ()) -> int:
        """Of the free slots the best one for this text; `before` as for `admit`."""
        ...

    def length(self, slot: int) -> int:
        """Committed entries of a slot."""
        ...

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        """Room for staged entries, before anything is proposed; OutOfBlocks when there is none."""
        ...

    def free(self, slots: Sequence[int]) -> None: ...
    def check_integrity(self) -> None:
        """EngineError if the counts of the cache contradict each other."""
        ...

    @property
    def spare(self) -> int | None:
        """Entries that are neither in use nor reserved; None: plenty."""
        ...

    @property
    def capacity(self) -> int:
        """Entries one slot can hold."""
        ...


class Cache(Slots, Protocol):
    """The cache as a model sees it."""

    def stage(self, x: ForwardInput) -> list[Segment]:
        """Note which staged entry follows which; what each token of the pass may see."""
        ...

    def wipe(self) -> None:
        """Zeros behind the staged entries of every slot of the pass, where older ones stood: for attention that masks
        entries instead of leaving them out, because NaN times zero is NaN."""
        ...

    def store(self, name: str) -> Tensor:
        """Per-token entries: [slots, heads, entries, width]."""
        ...

    def entries(self, name: str) -> Tensor:
        """The numbers of a per-token store as they lie: as `store` gives them, or in blocks: [heads, blocks * entries of a
        block, width]."""
        ...

    def place(self, slot: int) -> tuple[int, int | None]:
        """Where in `entries` those of a slot lie: its place or its first block, if they lie in one stretch; otherwise also
        the address of the numbers of its blocks, which count instead."""
        ...

    def pairs(self, layers: range) -> Tensor:
        """Keys and values of consecutive layers of a decoder: [layers, 2, slots, heads, entries, width]."""
        ...

    def state(self, name: str) -> Tensor:
        """Per-slot states after the committed text: [slots, heads, width]; zeros before the first token. A token without
        a staged parent reads it; only `commit` writes it."""
        ...

    def staged_states(self, name: str) -> Tensor:
        """Per-slot states after each staged token: [slots, staged, heads, width]. A token reads its parent's and writes its
        own."""
        ...

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
        """Keep these staged entries in this order, drop the rest. The state after the last one is the slot's."""
        ...


class Model(Protocol):
    """A network that scores tokens. Only runners call its passes."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What its cache must hold for every token, and for every slot."""
        ...

    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = ..., layers: LayerPlan = ...
    ) -> ForwardOutput: ...
    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]: ...
    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]: ...


class Saved(Protocol):
    """Copies of the cache entries of a text."""

    @property
    def num_tokens(self) -> int: ...


class Runner(Slots, Protocol):
    """One model with its cache, on one device or a group of them. Only runners touch either; all other parts hold host
    records and tensors, and wait for a device only where they read."""

    @property
    def info(self) -> ModelInfo: ...
    def open(
        self, slots: int, capacity: int, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
    ) -> "Runner":
        """The same weights with a cache of their own: `capacity` entries in each slot, so many of all slots together.
        `pools`: what parts store for every token besides the model."""
        ...

    def first_layers(self, count: int) -> "Runner":
        """A shallow model on the same weights: the first layers, then the same norm and head. Only with `layer_ranges`."""
        ...

    def execute(self, x: ForwardInput, *, taps: frozenset[int] = ..., layers: LayerPlan = ...) -> ForwardOutput:
        """One pass. It may return before the device is done."""
        ...

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        """Keep these staged entries in this order, drop the rest; `tokens` are what they are entries of."""
        ...

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        """What a part has stored for tokens, by slot and entry: committed entries first, staged ones behind them."""
        ...

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        """Store it. The entries are committed, shared and freed with the model's. Entries for which a slot has no room go
        where no text reads."""
        ...

    def filled(self, slot: int, name: str, upto: int) -> None:
        """The first `upto` entries of a pool hold what the part has stored. A prefix is shared only as far as every pool is
        filled."""
        ...

    def captured(
        self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """What a function of tensors returns. Where launches cost, it is captured once for each key and shape of its inputs,
        and replayed: so it may neither read numbers nor copy any from the host, and each call overwrites what the last one
        returned."""
        ...

    def forget(self) -> None:
        """No later text starts from what free slots still hold."""
        ...

    def present(self, tokens: Sequence[int], before: Sequence[int] = ()) -> tuple[int, int]:
        """How many entries `admit` would find for these tokens, and how many of them need no room, because others hold them
        and would go on holding them."""
        ...

    def save(self, slot: int) -> Saved | None:
        """A copy of a slot's committed entries, which outlives the slot. None: this runner makes none."""
        ...

    def restore(self, slot: int, saved: Saved, tokens: Sequence[int], most: int | None = None) -> int:
        """Behind the entries that `admit` found for these tokens, write the saved ones; how many there are then, at most
        `most`, and as many as there is room for."""
        ...

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]: ...
    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits, or only the rows `ids` of the LM head."""
        ...

    @property
    def max_cache_tokens(self) -> int:
        """Entries of all slots together."""
        ...
