"""Host reads: how often each rule copies numbers from the device to the host in one verify, and so waits for the device.

They are counted, not timed, on any machine: inside `as_if_on_a_device` rules take the path that they take on a GPU.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from draftwood.bench.micro.verifiers import DRAFTS, World, legal
from draftwood.bench.study.rules.known_distributions import known_rules, scored
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Verifier
from draftwood.core.verdict import Verdict
from draftwood.testing.host_reads import HostReads, as_if_on_a_device

VOCAB_SIZE, TOP_P = 512, 0.95
BATCHES = (1, 8)


class Reads(NamedTuple):
    """One rule on trees of 64 nodes, or on a chain if it is exact for chains only."""

    rule: str
    batch: int
    reads: int


def reads_by_rule() -> list[Reads]:
    """Of every rule that is built in. The drafts are those of `bench verifiers`, the first kind that a rule is exact for."""
    world, rows = World(VOCAB_SIZE, TOP_P), list[Reads]()
    for name, rule in known_rules().items():
        if rule is None:
            continue
        draft = next(each for each in DRAFTS if legal(name, each))
        for batch in BATCHES:
            _, reads = counted(world, rule, stated(world.proposal(draft, batch)))
            rows.append(Reads(name, batch, reads))
    return rows


def counted(world: World, rule: Verifier, proposal: Proposal, seed: int = 0) -> tuple[Verdict, int]:
    """The verdict of one verify on the path for a device, and its number of host reads."""
    rnd = world.round(proposal.tree.batch, seed)
    target = scored(world.logits, world.places(proposal), proposal.tree, rnd)
    with torch.inference_mode(), as_if_on_a_device(), HostReads() as reads:
        verdict = rule.verify(proposal, target, rnd)
    return verdict, reads.total


def stated(proposal: Proposal) -> Proposal:
    """With the bounds on depth and children that a drafter gives with its trees."""
    tree = proposal.tree
    copies = torch.where(tree.live, tree.copies, 0)
    draws = torch.zeros_like(copies).scatter_add(1, tree.parents.clamp_min(0), copies)
    return replace(proposal, max_depth=int((tree.depths() * tree.live).max()), max_children=int(draws.max()))
