"""Beside: several rules judge the same trees. One decides, the others only say what they would have kept.

All read the same pass, each with coins of its own, so that differences between rules are not differences between drafts.
The positions are those that the deciding rule came to: another rule would have gone on from others.
"""

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.bench.micro.target_pass import order
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legality import Shape
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.protocols import Verifier
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule kept of one tree, once for each set of coins, and its seconds with the first set."""

    kept: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """The distributions at a root: what its children were drawn from, how many draws there were, and which tokens are given."""

    p: Float[Tensor, "V"]
    q: Float[Tensor, "V"]
    draws: int
    given: tuple[int, ...]


@dataclass(slots=True)
class Looked:
    """One round with a draft."""

    nodes: int
    depth: int
    rules: dict[str, Judged]
    root: Root | None = None  # of every so many rounds
    pass_seconds: float | None = None  # None where the pass read a prompt, too


@dataclass(slots=True)
class Beside:
    """The first rule's verdict is the round's, with the round's own coins: the text is what that rule alone would write.
    For one text at a time. `trials`: sets of coins; `every`: of so many rounds one keeps its root's distributions."""

    rules: dict[str, Verifier]
    trials: int = 1
    every: int = 8
    rounds: list[Looked] = field(default_factory=list[Looked])

    @property
    def first(self) -> Verifier:
        return next(iter(self.rules.values()))

    @property
    def needs(self) -> Needs:
        return reduce(or_, (rule.needs for rule in self.rules.values()))

    @property
    def lossless(self) -> bool:
        return self.first.lossless

    @property
    def draws(self) -> frozenset[Draw]:
        return self.first.draws

    @property
    def shapes(self) -> frozenset[Shape]:
        return self.first.shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if not target.host_tree.drafted[0]:
            return self.first.verify(proposal, target, rnd)
        turn, leader = len(self.rounds), next(iter(self.rules))
        judged: dict[str, Judged] = {}
        verdicts: dict[str, Verdict] = {}
        for name in order(list(self.rules), turn):  # nobody always finds the logits in the processor's cache
            kept: list[int] = []
            seconds = 0.0
            for trial in range(self.trials):
                own = rnd if name == leader and not trial else rnd.inner(f"beside {name} {trial}")
                verdict, spent = _timed(self.rules[name], proposal, target, own)
                if not trial:
                    verdicts[name], seconds = verdict, spent
                kept.append(int(verdict.count[0]))
            judged[name] = Judged(tuple(kept), seconds)
        root = None if turn % self.every else root_of(proposal, target)
        self.rounds.append(Looked(target.host_tree.drafted[0], target.host_tree.deepest[0], judged, root))
        return verdicts[leader]

    def watch(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Adds what the round's pass took."""
        if outcome.drafted and outcome.drafted[0] and not outcome.seconds.prompt_tokens:
            self.rounds[-1].pass_seconds = outcome.seconds["score"]


def _timed(rule: Verifier, proposal: Proposal, target: Scored, rnd: Round) -> tuple[Verdict, float]:
    """With a view of the pass that nobody has used before: what one rule computed must not serve the next. What a round has
    anyway (the tree as lists, its options, its seeds) is there before the clock starts."""
    fresh = Scored(target.output, target.tree, rnd, target.host_tree)
    assert rnd.sampler is not None and rnd.seeds is not None
    start = perf_counter()
    verdict = rule.verify(proposal, fresh, rnd)
    return verdict, perf_counter() - start


def root_of(proposal: Proposal, target: Scored) -> Root:
    """The first node of the first row."""
    tree = proposal.tree
    node = torch.zeros_like(tree.tokens[:1, 0])
    children = tree.take(node).children(node)[0]
    p = target.probs(torch.zeros_like(tree.tokens[:, 0])).dense()[0].float()
    copies = torch.where(children, tree.copies[0], 0)
    row = proposal.q_indices()[:1, 0]
    q = torch.zeros_like(p) if proposal.q is None else proposal.q.dense(row, target.vocab_size)[0].to(p.dtype)
    given = tree.tokens[0][children & (tree.copies[0] == 0)]
    return Root(p, q, int(copies.sum()), tuple(given.tolist()))
