"""A request that leaves no token to choose ends alone, and the report in one read is that of lists."""

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

from device_runs import Ran, ran
from draftwood.controllers.fixed import Fixed
from draftwood.core.host_tree import HostTree, verdict
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import PROBE, SCORED, TokenTree
from draftwood.core.verdict import Verdict
from draftwood.engine.verifying import Report, read_report, report_of
from draftwood.models.decoder import Decoder
from draftwood.recipes import speculative_sampling
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.host_reads import HostReads
from draftwood.testing.parts.oracle_drafter import Replay
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_weights
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

BROKEN = 60
PROMPTS = [[1, 2, 3], [4, BROKEN, 5], [6, 7]]


def broken_model() -> Decoder:
    """Token 60 is not a number, and nothing that was read with it is."""
    weights = tiny_weights(2)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][BROKEN] = torch.nan
    return Decoder.from_tensors(replace(CONFIG, tie_embeddings=False), weights, dtype=torch.float64)


def matched(_: Any, rule: Any = None) -> Recipe:
    policy, size = Chain(draw=Draw.GIVEN), Fixed(depth=2)
    return Recipe(drafter=Replay({}, CONFIG.vocab_size), policy=policy, verifier=rule or Match(), controller=size)


def rejected(target: Any) -> Recipe:
    return speculative_sampling.build(target, draft="first:2")


def both(model: Decoder, build: Any, temperature: float) -> tuple[Ran, Ran]:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=6)
    plain, device = (ran(target, build, PROMPTS, params) for target in (CpuRunner(model), CudaRunner(model)))
    return plain, device


@pytest.mark.one_in(5)
@pytest.mark.parametrize("build", [matched, rejected])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_end_their_request_and_no_other(build: Any, temperature: float) -> None:
    plain, device = both(broken_model(), build, temperature)
    for found in (plain, device):
        assert [r.finish_reason for r in found.requests] == ["length", "error", "length"]
        assert "not numbers" in (found.requests[1].error or "")
    assert device.texts == plain.texts and device.texts[1] == []
    assert all(reads.total == 1 for reads in device.reads[1:]), "once it is gone, the others are read once again"
    assert BROKEN not in device.texts[0] + device.texts[2]


@dataclass(frozen=True, slots=True)
class Shy(Match):
    """A rule that refuses to judge more than one sequence."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if rnd.batch > 1:
            raise ValueError("one at a time")
        return Match.verify(self, proposal, target, rnd)


@dataclass(frozen=True, slots=True)
class Failing(Match):
    """A rule that fails on one request's texts."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if any(request.id == 1 for request in rnd.requests):
            raise ValueError("not this one")
        return Match.verify(self, proposal, target, rnd)


def test_a_rule_that_fails_on_a_batch_is_asked_about_each_sequence_alone() -> None:
    model = tiny_decoder(2)
    right = both(model, matched, 1.0)[0]
    for found in both(model, partial(matched, rule=Shy()), 1.0):
        assert found.texts == right.texts
    for found in both(model, partial(matched, rule=Failing()), 1.0):
        assert [found.texts[0], found.texts[2]] == [right.texts[0], right.texts[2]]
        assert found.requests[1].finish_reason == "error" and "not this one" in (found.requests[1].error or "")


# --- reports


def random_trees(rng: random.Random, batch: int, nodes: int, dead: float) -> Proposal:
    """Trees of any shape, with nodes of several sources; some dead, some that are only probes."""
    tokens = [[rng.randrange(50) for _ in range(nodes)] for _ in range(batch)]
    parents = [[-1, *(rng.randrange(i) for i in range(1, nodes))] for _ in range(batch)]
    live = [[True] for _ in range(batch)]
    role = [[SCORED, *(PROBE if rng.random() < 0.1 else SCORED for _ in range(1, nodes))] for _ in range(batch)]
    for b in range(batch):
        for i in range(1, nodes):
            live[b].append(live[b][parents[b][i]] and rng.random() >= dead)
    t = torch.tensor
    tree = TokenTree(
        tokens=t(tokens),
        parents=t(parents),
        live=t(live),
        role=t(role),
        copies=torch.zeros(batch, nodes, dtype=torch.int64),
        score=torch.zeros(batch, nodes),
        source=t([[rng.randrange(3) for _ in range(nodes)] for _ in range(batch)]),
    )
    return Proposal(tree)


def random_paths(rng: random.Random, tree: HostTree) -> list[list[int]]:
    """A scored node of each tree whose whole path is scored, and the path to it."""
    found: list[list[int]] = []
    for b in range(tree.batch):
        nodes = [i for i in range(tree.width) if all(tree.scored[b][n] for n in tree.path(b, i))]
        found.append(tree.path(b, rng.choice(nodes)))
    return found


@pytest.mark.parametrize("dead", [0.0, 0.4])
def test_a_report_in_one_read_is_that_of_lists(dead: float) -> None:
    rng = random.Random(1)
    accepted = 0
    for _ in range(60):
        batch, nodes = rng.randrange(1, 6), rng.randrange(1, 12)
        proposal = random_trees(rng, batch, nodes, dead)
        lists = HostTree.of(proposal.tree)
        paths = random_paths(rng, lists)
        made = verdict(paths, [rng.randrange(50) for _ in range(batch)], torch.device("cpu"))
        faults = [rng.randrange(4) for _ in range(batch)]
        with HostReads() as reads:
            found = read_report(proposal, made, torch.tensor(faults))
        assert reads.total == 1, reads.by_name
        right = report_of(lists, made)
        for name in ("paths", "after", "tokens", "sources", "drafted", "deepest", "in_pass", "emitted"):
            assert getattr(found, name) == getattr(right, name), name
        assert (found.faults, right.faults) == (faults, [0] * batch)
        # On a device dead nodes are in the pass, so an entry is the node's number; on lists its rank among live nodes.
        assert found.entries == [path[1:] for path in paths]
        assert right.entries == [[lists.rank[b][i] for i in path[1:]] for b, path in enumerate(paths)]
        assert dead or found.entries == right.entries
        accepted += sum(map(len, found.tokens))
    assert accepted > 50


def test_known_depths_are_not_computed_again() -> None:
    proposal = random_trees(random.Random(2), 2, 6, 0.0)
    made = verdict([[0], [0]], [1, 2], torch.device("cpu"))
    deep = torch.full((2, 6), 4)
    found = read_report(Proposal(proposal.tree, depths=deep), made, torch.zeros(2, dtype=torch.int64))
    assert found.deepest == [4, 4]


def test_emitted_tokens_are_the_path_and_what_follows_it() -> None:
    found = Report([[0, 2, 3], [0]], [7, 8], [[4, 5], []], [[0, 0], []], [[2, 3], []], [3, 3], [2, 1], [4, 3], [0, 0])
    assert found.emitted == [[4, 5, 7], [8, -1, -1]]
    assert Report([], [], [], [], [], [], [], [], []).emitted == []
