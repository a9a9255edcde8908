"""Features: a head that reads the target's features drafts token by token, through the one growing loop.

It keeps rows of its own, one per pair (feature of index t, token t + 1), and only for pairs whose feature came from the
target: what it wrote behind its own guesses is dropped every round, and the accepted tokens are run again with the
target's features before the next guess.

    known   x0 x1 x2 x3      root x3
    seen    f0 f1 f2         pairs (f0,x1) (f1,x2) (f2,x3): the last one's output guesses x4
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.limit import Limit
from draftwood.core.passes import Needs, Seen, Tokens
from draftwood.core.proposal import Draw, Laws, Proposal
from draftwood.core.protocols import Cache, TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.drafters.nets.runner import FeatureModel
from draftwood.trees.grow import grow

MARGIN = 1024  # staged rows beyond the longest text


@dataclass(slots=True)
class _Row:
    """One slot: whose it is, and fused features that have no row yet, from index `cache.length` on."""

    owner: Request
    waiting: Float[Tensor, "k d"] | None = None

    @property
    def held(self) -> int:
        return 0 if self.waiting is None else len(self.waiting)

    def add(self, fused: Float[Tensor, "k d"]) -> None:
        self.waiting = fused if self.waiting is None else torch.cat([self.waiting, fused])


@dataclass(slots=True)
class _State:
    cache: Cache
    rows: dict[int, _Row] = field(default_factory=dict[int, _Row])
    first: set[int] = field(default_factory=set[int])  # first tokens of all texts the cache remembers


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """`model` runs the head; `make_cache(slots)` gives it rows for texts as long as the target's."""

    model: FeatureModel
    make_cache: Callable[[int], Cache]
    draws: frozenset[Draw] = frozenset(Draw)

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset(self.model.taps))

    def init(self, slots: int) -> _State:
        return _State(self.make_cache(slots))

    def admit(self, state: _State, slot: int, request: Request) -> int:
        """Pairs that are here already; from there on the target must show its features again."""
        self.free(state, [slot])
        known = request.known
        state.first.add(known[0])
        # A row is known by its second token, so texts that begin differently must not share any.
        shared = state.cache.admit(slot, known[1:] if len(state.first) == 1 else [])
        state.rows[slot] = _Row(request)
        return shared

    def begin(self, state: _State, rnd: Round, seen: Seen) -> None:
        """Features of a chunk: all pairs but the newest become rows at once, so no draft waits for a whole prompt."""
        assert seen.tokens is not None
        slots, positions = seen.tokens.slots, seen.tokens.positions
        ready: list[int] = []
        for slot, length in zip(rnd.slots.tolist(), rnd.lengths.tolist(), strict=True):
            row = state.rows[slot]
            have = state.cache.length(slot) + row.held
            places = ((slots == slot) & (positions >= have) & (positions < length)).nonzero()[:, 0]
            row.add(self._fused(seen, places))
            if row.held > 1:
                ready.append(slot)
        self._run(state, ready)

    def _fused(self, seen: Seen, places: Int[Tensor, "k"]) -> Float[Tensor, "k d"]:
        return self.model.fuse([seen.features[tap][places] for tap in self.model.taps])

    def _run(self, state: _State, slots: list[int]) -> None:
        """Rows for all waiting pairs but the newest."""
        if not slots:
            return
        chains = {slot: state.rows[slot].held - 1 for slot in slots}
        x = self._chains(state, chains)
        self.model.forward(replace(x, want=x.want[:0]), state.cache)
        state.cache.commit(slots, [list(range(count)) for count in chains.values()])
        for slot, count in chains.items():
            row = state.rows[slot]
            assert row.waiting is not None
            row.waiting = row.waiting[count:].clone()

    def _chains(self, state: _State, counts: dict[int, int]) -> Tokens:
        """The first `count` waiting pairs of each slot, logits wanted at the last of each."""
        ids: list[int] = []
        at: list[list[int]] = [[], [], [], []]  # slots, positions, rows, parents
        hidden: list[Tensor] = []
        want: list[int] = []
        for slot, count in counts.items():
            row, done = state.rows[slot], state.cache.length(slot)
            assert row.waiting is not None
            ids += row.owner.known_from(done + 1, done + 1 + count)
            for column, values in zip(
                at, ([slot] * count, range(done, done + count), range(count), range(-1, count - 1)), strict=True
            ):
                column += values
            hidden.append(row.waiting[:count])
            want.append(len(ids) - 1)
        device = hidden[0].device
        whole = torch.tensor([ids, *at], dtype=torch.int64, device=device).unbind(0)
        return Tokens(*whole, want=torch.tensor(want, device=device), hidden=torch.cat(hidden))

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        slots, lengths = rnd.slots.tolist(), rnd.lengths.tolist()
        # A text whose features have not been shown yet (its first pass) has nothing to draft from.
        counts = {
            slot: length - 1 - state.cache.length(slot)
            for slot, length in zip(slots, lengths, strict=True)
            if slot in state.rows and state.cache.length(slot) + state.rows[slot].held == length - 1
        }
        rows = [b for b, slot in enumerate(slots) if slot in counts]
        if not rows:
            return base
        staged = limit.tier.depth * limit.tier.nodes  # at most: a level's frontier is never wider than the budget
        state.cache.reserve(list(counts), [count + min(staged, MARGIN) for count in counts.values()])
        ranked = policy.draw is Draw.GIVEN  # given children of greedy requests are ranked, not one alone
        draft = _Draft(self.model, state.cache, rnd, rows, self._chains(state, counts), list(counts.values()), ranked)
        proposal = grow(base, limit, policy, rnd, draft.step)
        # Rows behind guesses go. The pairs of known tokens stay: their features are the target's own.
        kept = list(counts.values()) if draft.outputs is not None else [0] * len(counts)
        state.cache.commit(list(counts), [list(range(count)) for count in kept])
        for slot, count in zip(counts, kept, strict=True):
            row = state.rows[slot]
            row.waiting = None if row.waiting is None or count == row.held else row.waiting[count:]
        return replace(proposal, pass_seconds=draft.seconds)

    def commit(self, state: _State, rnd: Round, outcome: Outcome, seen: Seen) -> None:
        """The target's features of the root and of every accepted token."""
        assert seen.row is not None
        paths, counts = outcome.verdict.path.tolist(), outcome.verdict.count.tolist()
        places: list[int] = []
        taken: list[tuple[_Row, int]] = []
        where = seen.row.tolist()
        for b, (slot, length) in enumerate(zip(rnd.slots.tolist(), rnd.lengths.tolist(), strict=True)):
            row = state.rows.get(slot)
            if row is None:
                continue
            skip = state.cache.length(slot) + row.held - (length - 1)  # begin may have taken the root's already
            nodes = paths[b][max(skip, 0) : counts[b] + 1]
            places += [where[b][node] for node in nodes]
            taken.append((row, len(nodes)))
        if not places:
            return
        fused = self._fused(seen, torch.tensor(places, device=rnd.device))
        at = 0
        for row, count in taken:
            row.add(fused[at : at + count])
            at += count

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            if state.rows.pop(slot, None) is not None:
                state.cache.free([slot])


class _Draft:
    """One round's draft in the making: outputs and staged rows of the nodes that were run."""

    def __init__(
        self,
        model: FeatureModel,
        cache: Cache,
        rnd: Round,
        rows: list[int],
        chain: Tokens,
        counts: list[int],
        ranked: bool,
    ) -> None:
        self.model, self.cache, self.rnd, self.chain, self.ranked = model, cache, rnd, chain, ranked
        self.rows = torch.tensor(rows, device=rnd.device)
        self.everyone = len(rows) == rnd.batch
        last = torch.zeros(rnd.batch, 1, dtype=torch.int64, device=rnd.device)
        last[self.rows, 0] = torch.tensor(counts, device=rnd.device) - 1
        self.staged = last  # staged row of every node that was run
        self.place = torch.zeros_like(last)  # its output among `outputs`
        self.outputs: Tensor | None = None
        self.passes, self.seconds = 0, 0.0

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[Laws, Float[Tensor, "B F d"] | None]:
        started = perf_counter()
        if self.outputs is None:
            a, found = self.model.forward(self.chain, self.cache)
            self.outputs = a[self.chain.want]
            self.place[self.rows, 0] = torch.arange(len(self.rows), device=self.place.device)
            logits = found if self.everyone else found.new_zeros(self.rnd.batch, found.shape[-1])
            if not self.everyone:
                logits[self.rows] = found
            logits = logits[:, None]
        else:
            logits = self._level(tree, frontier)
        self.passes += 1
        self.seconds += perf_counter() - started
        ids = self.model.ids
        law = self.rnd.law(logits, tree, frontier.clamp_min(0), ids, ranked=self.ranked)
        if not self.everyone and tree.num_nodes == 1:
            waiting = torch.ones(self.rnd.batch, dtype=torch.bool, device=law.device)
            waiting[self.rows] = False
            law = law.masked_fill(waiting[:, None, None], 0.0)  # nothing to say, no children
        return Laws(law.flatten(0, 1), ids), None

    def _level(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> Float[Tensor, "B F W"]:
        """One pass over the frontier, each node behind the staged row of its parent and reading its parent's output."""
        assert self.outputs is not None
        real, node = frontier >= 0, frontier.clamp_min(0)
        more = tree.num_nodes - self.staged.shape[1]
        staged = torch.nn.functional.pad(self.staged, (0, more), value=-1)
        place = torch.nn.functional.pad(self.place, (0, more))
        parent = tree.parents.gather(1, node).clamp_min(0)
        own = staged.amax(1, keepdim=True) + real.long().cumsum(1)
        flat = real.flatten().nonzero()[:, 0]
        above = place.gather(1, parent).flatten()[flat]
        depth = tree.depths().gather(1, node)
        position = self.rnd.lengths[:, None] - 2 + depth
        x = Tokens(
            ids=tree.tokens.gather(1, node).flatten()[flat],
            slots=self.rnd.slots[:, None].expand_as(node).flatten()[flat],
            positions=position.flatten()[flat],
            rows=own.flatten()[flat],
            parents=staged.gather(1, parent).flatten()[flat],
            want=torch.arange(len(flat), device=flat.device),
            hidden=self.outputs[above],
        )
        first = len(self.outputs)
        a, found = self.model.forward(x, self.cache)
        self.outputs = torch.cat([self.outputs, a])
        new = torch.zeros_like(own).flatten()
        new[flat] = torch.arange(first, first + len(flat), device=flat.device)
        self.staged = staged.scatter(1, node, torch.where(real, own, staged.gather(1, node)))
        self.place = place.scatter(1, node, torch.where(real, new.view_as(own), place.gather(1, node)))
        logits = found.new_zeros(real.numel(), found.shape[-1])
        return logits.index_copy(0, flat, found).view(*real.shape, -1)
