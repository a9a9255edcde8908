"""Guessing blocks reads nothing on the host, and leaves nothing in the cache."""

from typing import Any

import pytest
import torch

from draftwood.core.forward import ForwardInput, HostInput
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.runners.semi_runner import SemiRunner
from draftwood.drafters.on_features.semi_autoregressive import _Draft
from draftwood.testing.contracts import toy_round
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.grow import grow

TEXTS = [[1, 2, 3, 4, 5], [6, 7, 8]]
LIMIT = Limit.of([4, 3], [12, 12])


def begun() -> SemiRunner:
    """With the pairs of two texts."""
    target = tiny_runner()
    runner = SemiRunner(filled(random_head("semi", target)).double(), target, None).open(2, 32)
    noise = torch.Generator().manual_seed(1)
    for slot, text in enumerate(TEXTS):
        runner.admit(slot, [])
        count = len(text) - 1
        at = list(range(count))
        hidden = torch.randn(count, CONFIG.hidden_size, dtype=torch.float64, generator=noise)
        columns = HostInput(text[1:], [slot] * count, at, [i - 1 for i in at])
        runner.execute(ForwardInput.of(columns, at, [], torch.device("cpu"), hidden))
        runner.commit([slot], [at], [text[1:]])
    return runner


def drafted(runner: SemiRunner, rnd: Round, policy: Any) -> Proposal:
    draft = _Draft(runner, rnd, [len(text) - 1 for text in TEXTS], None, policy.draw.ranked, True)
    return grow(Proposal.roots(rnd.roots()), LIMIT, policy, rnd, draft.step)


def paths(proposal: Proposal, policy: Any) -> list[set[tuple[int, ...]]]:
    tree = proposal.tree.keep(policy.select(proposal.tree, LIMIT))
    every = tree.path_tokens(torch.arange(tree.num_nodes).expand(2, -1)).tolist()
    return [
        {tuple(t for t in path if t >= 0) for path, live in zip(*each, strict=True) if live}
        for each in zip(every, tree.live.tolist(), strict=True)
    ]


@pytest.mark.parametrize("policy", [BestFirst(3), Chain(Draw.GIVEN)], ids=["tree", "chain"])
def test_the_host_reads_nothing_while_blocks_are_guessed_and_the_tree_is_the_same(policy: Any) -> None:
    runner, rnd = begun(), toy_round(TEXTS, CONFIG.vocab_size, temperature=0.0)
    right = paths(drafted(runner, rnd, policy), policy)
    assert rnd.host_slots == [0, 1]  # as the engine gives them
    with as_if_on_a_device(), HostReads() as reads:
        found = drafted(runner, rnd, policy)
    assert reads.total == 0, reads.by_name
    assert paths(found, policy) == right and len(right[0]) > 4
    assert [runner.length(slot) for slot in (0, 1)] == [4, 2]


def test_a_chain_is_neither_guessed_nor_drawn_in_one_call_but_block_by_block() -> None:
    hidden = torch.randn(1, CONFIG.hidden_size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x = ForwardInput.of(HostInput([5], [0], [4], [3]), [4], [0], torch.device("cpu"), hidden)
    assert begun().best_chains(x, [1.0], 4) is None
    assert begun().drawn_chain(x, 1.0, torch.zeros(4, 3)) is None
