"""Paired runs: several rules verify the same trees. The verdict of the first one counts, those of the others are recorded.

All rules read the same target pass, each with coins of its own, so that differences between rules are not differences
between drafts. The positions are those that the first rule reaches; another rule alone would have reached others.
"""

from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.bench.micro.target_pass import clock, order
from draftwood.core import host
from draftwood.core.forward import ForwardOutput, Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Verifier
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule accepted of one tree, once for each set of coins, and its seconds with the first set."""

    kept: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """Distributions at a root, on the CPU, the number of draws among its children, and the given tokens."""

    p: Float[Tensor, "V"]
    q: Float[Tensor, "V"]
    draws: int
    given: tuple[int, ...]


@dataclass(slots=True)
class PairedRound:
    """One round with a draft, verified by every rule."""

    nodes: int
    depth: int
    rules: dict[str, Judged]
    root: Root | None = None  # only in one of `every` rounds
    pass_seconds: float | None = None  # None where the pass also read a prompt, or was only enqueued on a GPU


@dataclass(slots=True)
class PairedRules:
    """A verifier that returns the verdict of its first rule, which uses the round's own coins: the text is that of the first
    rule alone. For one sequence at a time. `trials`: sets of coins; `every`: one of so many rounds keeps its Root."""

    rules: dict[str, Verifier]
    trials: int = 1
    every: int = 8
    rounds: list[PairedRound] = field(default_factory=list[PairedRound])

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
        for name in order(list(self.rules), turn):  # so that no rule always finds the logits in the processor's cache
            rounds = [rnd.inner(f"paired {name} {trial}") for trial in range(self.trials)]
            if name == leader:
                rounds[0] = rnd
            found = [_timed(self.rules[name], proposal, target, own) for own in rounds]
            verdicts[name], seconds = found[0]
            judged[name] = Judged(tuple(int(verdict.count[0]) for verdict, _ in found), seconds)
        root = None if turn % self.every else root_of(proposal, target)
        self.rounds.append(PairedRound(target.host_tree.drafted[0], target.host_tree.deepest[0], judged, root))
        return verdicts[leader]

    def watch(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Add the time of the round's target pass, where it is known."""
        if outcome.drafted and outcome.drafted[0] and not outcome.seconds.prompt_tokens and host.on_host(rnd.device):
            self.rounds[-1].pass_seconds = outcome.seconds["score"]


def _timed(rule: Verifier, proposal: Proposal, target: Scored, rnd: Round) -> tuple[Verdict, float]:
    """With a fresh view of the pass, so that no rule uses what another one computed. What every round has (the host copy of
    the tree, options, seeds) exists before the clock starts."""
    fresh = Scored(target.output, target.tree, rnd, target.host_tree)
    assert rnd.sampler is not None and rnd.seeds is not None
    verdicts: list[Verdict] = []
    seconds = clock(lambda: verdicts.append(rule.verify(proposal, fresh, rnd)), rnd.device)
    return verdicts[0], seconds


def root_of(proposal: Proposal, target: Scored) -> Root:
    """The root of the first sequence."""
    tree = proposal.tree
    node = torch.zeros_like(tree.tokens[:1, 0])
    children = tree.take(node).children(node)[0]
    p = target.probs(torch.zeros_like(tree.tokens[:, 0])).dense()[0].float()
    copies = torch.where(children, tree.copies[0], 0)
    index = proposal.q_indices()[:1, 0]
    q = torch.zeros_like(p) if proposal.q is None else proposal.q.dense(index, target.vocab_size)[0].to(p.dtype)
    given = tree.tokens[0][children & (tree.copies[0] == 0)]
    return Root(p.cpu(), q.cpu(), int(copies.sum()), tuple(given.tolist()))
