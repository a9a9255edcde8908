"""One verify on a CPU, and one as on an accelerator: both verdicts, and what was read."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from draftwood.bench.micro.host_reads import stated
from draftwood.bench.micro.verifiers import DRAFTS, World
from draftwood.bench.study.rules.known_distributions import scored
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import HostVerdict, Verdict
from draftwood.testing.host_reads import HostReads, as_if_on_a_device

VOCAB = 90  # more than a pick takes in one step
MIXED: list[dict[str, Any]] = [
    {}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 0.0}, {"min_p": 0.1}, {"temperature": 1.4},
    {"top_p": 0.9, "top_k": 40}, {"top_p": 0.95, "min_p": 0.02, "temperature": 0.7},
]  # fmt: skip
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "whole": [{}],
    "top-p": [{"top_p": 0.8}],
    "top-k": [{"top_k": 7, "temperature": 0.8}],
    "min-p": [{"min_p": 0.05}],
    "mixed": MIXED,
}


@dataclass(frozen=True)
class Scene:
    """Trees, and the logits of every node."""

    proposal: Proposal
    logits: Tensor  # [U, V]
    place: Tensor  # [B, N] the logits of each node

    def round(self, options: list[dict[str, Any]], seed: int) -> Round:
        """Sequences take turns with the options."""
        batch = self.proposal.tree.batch
        params = [
            SamplingParams(**{"temperature": 1.0, "seed": 99 * seed + b, **options[b % len(options)]})
            for b in range(batch)
        ]
        requests = tuple(Request(b, [1, 2, 0], each, self.logits.shape[1]) for b, each in enumerate(params))
        return Round(torch.arange(batch), torch.full((batch,), 3), requests)

    def target(self, options: list[dict[str, Any]], seed: int) -> Scored:
        return scored(self.logits, self.place, self.proposal.tree, self.round(options, seed))

    def on_host(self, rule: Any, options: list[dict[str, Any]], seed: int = 0) -> HostVerdict:
        target = self.target(options, seed)
        return rule.verify(self.proposal, target, target.rnd).to_host()

    def on_device(self, rule: Any, options: list[dict[str, Any]], seed: int = 0) -> tuple[Verdict, HostReads]:
        target = self.target(options, seed)
        with as_if_on_a_device(), HostReads() as reads:
            found = rule.verify(self.proposal, target, target.rnd)
        return found, reads


@cache
def world() -> World:
    return World(VOCAB, 1.0)


@cache
def drafted(draft: int, batch: int) -> Scene:
    """Drafts of the kind that rules are timed with, and what the target says about them."""
    return scene(stated(world().proposal(DRAFTS[draft], batch)))


def scene(proposal: Proposal) -> Scene:
    tree = proposal.tree
    place = torch.stack([world().place(b, torch.arange(tree.num_nodes)) for b in range(tree.batch)])
    return Scene(proposal, world().logits, torch.where(proposal.q_indices() >= 0, proposal.q_indices(), place))


def bare(batch: int) -> Scene:
    return scene(Proposal.roots(torch.zeros(batch, dtype=torch.int64)))


def same(a: HostVerdict, b: HostVerdict) -> bool:
    return a.paths == b.paths and a.after == b.after
