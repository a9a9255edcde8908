"""Lookahead: the target guesses phrases ahead of the text in the pass that verifies earlier ones. No draft model.

    phrases behind the root     chains from the pools, scored: what is accepted becomes text
    the window                  probes: in the pass and never accepted; their outputs make the next row of the window, and
                                each column of it a phrase

A branch of the window that begins as a phrase shares its nodes. Entries of probes are dropped with the round.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from draftwood.controllers.estimates.survival import Survival
from draftwood.controllers.estimates.yields import Yield, Yields
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.host import host, on_host
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.tree import AHEAD
from draftwood.core.verdict import Outcome
from draftwood.drafters.combine.costs import RoundSeconds, judge, paying_nodes
from draftwood.drafters.phrases.phrase_tree import PhraseTree, end_of, merged
from draftwood.drafters.phrases.phrases import Phrase, PhrasePool
from draftwood.drafters.phrases.window import Window, window_depth, window_nodes
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved
from draftwood.drafters.stateless import Stateless
from draftwood.errors import DrafterError, need_at_least

FIRST, LATER = (
    0.35,
    0.6,
)  # chance of a phrase's first token, and of each further one, until rounds have taught better ones
FADE = 0.5  # weight of a phrase beside the next newer one
SAMPLED = -0.7  # log-odds by which a guess is less often right where the target samples
MARGIN = 1.02  # times as fast as plain decoding: what phrases must be expected to be


@dataclass(slots=True)
class _Sequence:
    """What one request has. `made` and `copied`: phrases of the window, and of the text when it came."""

    request: Request
    window: Window
    made: PhrasePool
    copied: PhrasePool
    shown: list[Phrase] = field(default_factory=list[Phrase])  # of `made`, in this round's tree
    others: list[Phrase] = field(default_factory=list[Phrase])  # of `copied`
    found: Retrieved = NOTHING
    branches: list[list[int]] = field(default_factory=list[list[int]])  # of the window in this round's pass
    asked: bool = False  # in this round: beside other drafters it is not asked in every one


@dataclass(slots=True)
class _State:
    survival: tuple[Survival, Survival]  # of greedy requests, and of sampled ones
    worth: tuple[Yields, Yields]  # accepted tokens of a window's phrases, for each pass with a full window
    costs: RoundSeconds = field(default_factory=RoundSeconds)
    sequences: dict[int, _Sequence] = field(default_factory=dict[int, _Sequence])  # by slot


@dataclass(frozen=True, slots=True)
class Lookahead(Stateless):
    """Phrases of `ngram` - 1 tokens, `guesses` of them for each token in the pool and in a pass; a window of `width`
    columns. `copy`: phrases of the text that a request comes with are in a pool too.

    `worth` None: always all of it. Else accepted tokens that a pass with a window is expected to bring, in greedy texts
    and in sampled ones: then only phrases and windows that pay are in the pass, by the limit's cost model. Rounds correct
    what is expected."""

    ngram: int = 5
    width: int = 7
    guesses: int = 7
    copy: bool = True
    worth: tuple[float, float] | None = None
    needs: Needs = Needs()
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})

    def __post_init__(self) -> None:
        need_at_least("Lookahead", ngram=(self.ngram, 2), width=(self.width, 1), guesses=(self.guesses, 1))

    @property
    def depth(self) -> int:
        """Levels of the largest tree."""
        return max(self.ngram - 1, window_depth(self.width, self.ngram))

    @property
    def nodes(self) -> int:
        """Nodes of the largest tree."""
        return self.guesses * (self.ngram - 1) + window_nodes(self.width, self.ngram)

    def init(self, slots: int) -> _State:
        greedy, sampled = (Yields(Yield(tokens, 0.0, 0.0)) for tokens in self.worth or (0.0, 0.0))
        return _State((Survival(), Survival(offset=SAMPLED)), (greedy, sampled))

    def propose(self, state: _State, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        if base.tree.num_nodes > 1 or rnd.in_flight:
            return base  # what follows a draft is not known yet
        if self.worth is not None:
            if limit.cost_model is None:
                raise DrafterError("Lookahead needs a controller that supplies a cost model, such as Priced")
            state.costs.look_up(limit.cost_model, rnd, max(self.nodes, *limit.budgets))
        trees: list[PhraseTree] = []
        for slot, request, depth, nodes in zip(rnd.host_slots, rnd.requests, limit.depths, limit.budgets, strict=True):
            own = self._sequence(state, slot, request)
            own.found, own.branches, own.asked = NOTHING, [], True
            if depth and nodes:
                own.found = self._phrases(state, own, slot, depth, nodes)
            tree = PhraseTree.of(own.found)
            if depth >= window_depth(self.width, self.ngram) and self._pays(state, own, slot):
                whole = PhraseTree.of(own.found)
                whole.add_probes(branches := own.window.branches())
                if len(whole.tokens) <= nodes:
                    tree, own.branches = whole, branches
            trees.append(tree)
        # On an accelerator shapes follow the limit, not the text.
        least = 0 if on_host(rnd.device) or not any(tree.tokens for tree in trees) else limit.tier.nodes - 1
        lists = ([getattr(tree, name) for tree in trees] for name in ("tokens", "parents", "score"))
        return base.with_given(*lists, least=least, role=[tree.role for tree in trees])

    def _sequence(self, state: _State, slot: int, request: Request) -> _Sequence:
        known = state.sequences.get(slot)
        if known is None or known.request is not request:
            text, size = request.known, self.ngram - 1
            copied = PhrasePool(self.guesses)
            for i in range(len(text) - size if self.copy else 0):
                copied.add(text[i], text[i + 1 : i + 1 + size])
            window = Window.of(text, self.width, self.ngram, request.seed)
            known = state.sequences[slot] = _Sequence(request, window, PhrasePool(self.guesses), copied)
        return known

    def _phrases(self, state: _State, own: _Sequence, slot: int, depth: int, nodes: int) -> Retrieved:
        """What may follow the root, the window's own phrases first; of it as much as pays."""
        root = own.request.root
        own.shown = own.made.newest(root, self.guesses)
        own.others = own.copied.newest(root, self.guesses - len(own.shown))
        found = merged([phrase[:depth] for phrase in (*own.shown, *own.others)]).best(nodes)
        if self.worth is None or not found.tokens:
            return found
        seconds = state.costs.seconds
        return paying_nodes(found, state.survival[not own.request.params.greedy], slot, seconds, MARGIN / seconds[0])[0]

    def _pays(self, state: _State, own: _Sequence, slot: int) -> bool:
        """Whether the phrases of one pass with a window are expected to save more time than its probes take."""
        if self.worth is None:
            return True
        seconds, scored = state.costs.seconds, len(own.found.tokens)
        probes = min(window_nodes(self.width, self.ngram), len(seconds) - 1 - scored)
        tokens = state.worth[not own.request.params.greedy].expected(slot).accepted
        return tokens * seconds[0] > seconds[scored + probes] - seconds[scored]

    def commit(self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        paths = outcome.verdict.to_host().paths
        moving: list[int] = []
        for b, (slot, path) in enumerate(zip(rnd.host_slots, paths, strict=True)):
            own = state.sequences.get(slot)
            if own is None or not own.asked:
                continue
            own.asked = False
            emitted, sampled = outcome.emitted[b], not own.request.params.greedy
            if own.found.tokens:
                judge(state.survival[sampled], slot, own.found, emitted)
            else:
                state.survival[sampled].rest(slot)
            if not own.branches:
                state.worth[sampled].rest(slot)
                continue
            moving.append(b)
            if own.window.full:
                state.worth[sampled].learn(slot, Yield(_credit(own, emitted[: len(path) - 1]), 0, 0))
        if moving:
            self._move(state, rnd, outcome, output, moving)

    def _move(
        self, state: _State, rnd: Round, outcome: Outcome, output: ForwardOutput, sequences: Sequence[int]
    ) -> None:
        """Windows take in what the target found behind their branches. Nodes are looked up by token; a window of which some
        were cut stays as it is."""
        tree = outcome.proposal.tree
        inside = tree.live & (tree.role != AHEAD)
        best = Scored(output, tree, rnd).best()
        columns: list[list[list[int]]] = host(torch.stack([tree.tokens, tree.parents, inside.long(), best]))
        for b in sequences:
            own = state.sequences[rnd.host_slots[b]]
            tokens, parents, live, after = (column[b] for column in columns)
            each = enumerate(zip(parents, tokens, live, strict=True))
            child = {(parent, token): i for i, (parent, token, on) in each if on and i}
            ends = [end_of(child, branch) for branch in own.branches]
            row = [after[node] for node in ends if node >= 0]
            if len(row) == len(ends) and min(row) >= 0:
                for key, phrase in own.window.advance(tokens[0], row):
                    own.made.add(key, phrase)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.sequences.pop(slot, None)
            for each in (*state.survival, *state.worth):
                each.free(slot)


def _credit(own: _Sequence, accepted: Sequence[int]) -> int:
    """Accepted tokens that only phrases of the window had."""
    paths = [tuple(accepted[: i + 1]) for i in range(len(accepted))]
    held = [{phrase[: len(path)] for phrase in own.others} for path in paths]
    return sum(path not in others for path, others in zip(paths, held, strict=True))
