"""A pass over trees whose probes enter by vectors of their own computes ordinary tokens as without them."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.core.proposal import Inputs, Proposal
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens, score
from draftwood.core.scored import Scored
from draftwood.core.tree import PROBE, SCORED, TokenTree
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG
from own_layers import TARGETS

TEXTS = [[3, 1, 4, 1, 5], [9, 2]]
TAPS = frozenset({FINAL})


def tree(rnd: Round, probes: bool) -> Proposal:
    """Below each root a token and its child, and, with `probes`, two probes below the root and one below the token.

    0 ┬ 1 ─ 2          p: 3 ─ 4 below the root, 5 below node 1
      ├ p ─ p
      1 ─ p
    """
    nodes = TokenTree.roots(rnd.roots())
    for parent, token in ((0, 7), (1, 8)):
        nodes = nodes.add(*(torch.full((rnd.batch, 1), x) for x in (parent, token)), live=nodes.live[:, :1], copies=0)
    if not probes:
        return Proposal(nodes)
    for parent in (0, 3, 1):
        at = torch.full((rnd.batch, 1), parent)
        nodes = nodes.add(at, torch.full_like(at, 7), live=nodes.live[:, :1], copies=0, role=PROBE)
    noise = torch.randn(2, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Proposal(nodes, inputs=Inputs(noise, torch.tensor([[-1, -1, -1, 0, 1, 0]] * rnd.batch)))


def scored(target: Runner, proposal: Proposal, rnd: Round, done: int = 0) -> Scored:
    """`done`: tokens of each text that are in the cache already."""
    runner = target.open(2, 64)
    slots, each = [0, 1], [len(text) for text in TEXTS]
    for slot, text in enumerate(TEXTS):
        runner.admit(slot, text, 0)
    if done:
        before = [KnownTokens(s, 0, text[:done]) for s, text in enumerate(TEXTS)]
        runner.reserve(slots, [done] * 2)
        score(runner, before, Proposal.roots(rnd.roots()[:0]), rnd.take([]))
        runner.commit(slots, [list(range(done))] * 2, [text[:done] for text in TEXTS])
    runner.reserve(slots, [size - done + 5 for size in each])
    chains = [KnownTokens(s, done, text[done:]) for s, text in enumerate(TEXTS)]
    return score(runner, chains, proposal, rnd, taps=TAPS)


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("name", list(TARGETS))
def test_ordinary_tokens_are_computed_as_without_probes(name: str, done: int) -> None:
    target, rnd, ordinary = TARGETS[name](), toy_round(TEXTS, CONFIG.vocab_size), torch.arange(3).expand(2, -1)
    with torch.inference_mode(), as_if_on_a_device() if name == "device" else nullcontext():
        with_probes, without = (scored(target, tree(rnd, probes), rnd, done) for probes in (True, False))
        pairs = [(s.logits(ordinary), s.feature(FINAL, ordinary)) for s in (with_probes, without)]
    for one, two in zip(*pairs, strict=True):
        # A product of floats over more tokens may add in another order; the int8 backend does not.
        assert torch.equal(one, two) if name == "int8" else (one - two).abs().max() < 1e-12


@pytest.mark.parametrize("name", list(TARGETS))
def test_ordinary_tokens_keep_every_bit_whatever_the_probes_are(name: str) -> None:
    """The twin: an ordinary node that enters by a vector is another text."""
    """The twin: those of a node that hangs below a probe change."""
    target, rnd, ordinary = TARGETS[name](), toy_round(TEXTS, CONFIG.vocab_size), torch.arange(3).expand(2, -1)
    made = tree(rnd, True)
    assert made.inputs is not None
    vectors, index = made.inputs.vectors, made.inputs.index
    ordinary_too = torch.where(torch.arange(6) == 1, 0, index)  # what the check of proposals refuses
    with torch.inference_mode(), as_if_on_a_device() if name == "device" else nullcontext():
        for places in (index, ordinary_too):
            pair = [
                scored(target, replace(made, inputs=Inputs(factor * vectors, places)), rnd).feature(FINAL, ordinary)
                for factor in (1.0, -3.0)
            ]
            assert torch.equal(*pair) == (places is index)


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_probe_is_what_its_vector_says_and_not_its_token(name: str) -> None:
    """The twin: without inputs the same probes compute something else."""
    target, rnd, probes = TARGETS[name](), toy_round(TEXTS, CONFIG.vocab_size), torch.arange(3, 6).expand(2, -1)
    made = tree(rnd, True)
    assert made.inputs is not None
    other = Inputs(made.inputs.vectors, torch.where(made.inputs.index == 1, 0, made.inputs.index))
    with torch.inference_mode(), as_if_on_a_device() if name == "device" else nullcontext():
        found = [
            scored(target, replace(made, inputs=inputs), rnd).feature(FINAL, probes)
            for inputs in (made.inputs, other, None)
        ]
    assert torch.equal(found[0][:, ::2], found[1][:, ::2]), "the same vector at the same places"
    assert (found[0][:, 1] - found[1][:, 1]).abs().min(-1).values.max() > 0
    assert (found[0] - found[2]).abs().amax(-1).min() > 1e-3


def test_on_a_host_no_logits_are_made_of_probes_with_inputs_and_on_a_device_nothing_is_read() -> None:
    rnd = toy_round(TEXTS, CONFIG.vocab_size)
    proposal = tree(rnd, True)
    with torch.inference_mode():
        here = scored(TARGETS["float64"](), proposal, rnd)
        assert len(here.output.logits) == 6 and here.best()[:, :3].min() >= 0
        with as_if_on_a_device():
            target = TARGETS["device"]()
            runner = target.open(2, 64)
            for slot, text in enumerate(TEXTS):
                runner.admit(slot, text, 0)
            runner.reserve([0, 1], [10, 10])
            chains = [KnownTokens(s, 0, text) for s, text in enumerate(TEXTS)]
            with HostReads() as reads:
                score(runner, chains, proposal, rnd, taps=TAPS)
    assert reads.total == 0, reads.by_name


def test_scored_nodes_keep_their_role() -> None:
    rnd = toy_round(TEXTS, CONFIG.vocab_size)
    assert tree(rnd, True).tree.role[0].tolist() == [SCORED] * 3 + [PROBE] * 3
