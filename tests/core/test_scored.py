"""The target's distributions are indexed by a tree; lists are made of it only when they are used."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from draftwood import recipes
from draftwood.core import scored as module
from draftwood.core.forward import ForwardOutput
from draftwood.core.host_tree import HostTree
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree
from draftwood.models.backends.choose import int8_decoder
from draftwood.models.backends.int8_weights import from_tensors as int8_weights
from draftwood.models.decoder import Decoder
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.tiny import CONFIG, tiny_weights
from draftwood.testing.runs import make_engine, serve

VOCAB = 5


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TokenTree]:
    """Trees of which lists were made."""
    output: list[TokenTree] = []

    class Counted(HostTree):
        @staticmethod
        def of(tree: TokenTree) -> HostTree:
            output.append(tree)
            return HostTree.of(tree)

    monkeypatch.setattr(module, "HostTree", Counted)
    return output


def target(*temperatures: float, top_p: float = 1.0) -> Scored:
    """A root and one node for each temperature, and a logit row for each."""
    batch = len(temperatures)
    tree = TokenTree.roots(torch.zeros(batch, dtype=torch.int64))
    below = torch.arange(1, batch + 1)[:, None]
    tree = tree.add(torch.zeros_like(below), below, live=below > 0)
    rows = torch.arange(2 * batch)
    logits = torch.randn(2 * batch, VOCAB, generator=torch.Generator().manual_seed(3))
    output = ForwardOutput(logits, torch.zeros(2 * batch, 4), rows, token_index=rows.view(batch, 2))
    requests = tuple(
        Request(i, [1, 0], SamplingParams(temperature=t, seed=i, top_p=top_p if i else 1.0), VOCAB)
        for i, t in enumerate(temperatures)
    )
    return Scored(output, tree, Round(torch.arange(batch), torch.full((batch,), 2), requests))


def test_logits_that_hold_the_options_already_are_not_changed_again() -> None:
    plain = target(0.0, 1.0)
    logits, tree = plain.output.logits, plain.tree
    logits[:, 3] -= 9
    each = [SamplingParams(temperature=t, seed=i, logit_bias={3: 9.0}) for i, t in enumerate((0.0, 1.0))]
    requests = tuple(Request(i, [1, 0], own, VOCAB) for i, own in enumerate(each))
    rnd, root = Round(plain.rnd.slots, plain.rnd.lengths, requests), torch.zeros(2, dtype=torch.int64)
    adjusted, again = Scored(plain.output, tree, rnd, adjusted=True), Scored(plain.output, tree, rnd)
    for own in (adjusted, adjusted.take([0, 1]), adjusted.over(tree)):
        assert own.plain and torch.equal(own.probs(root).dense(), plain.probs(root).dense())
        assert torch.equal(own.token(root, 0), plain.token(root, 0)) and own.take([0]).simple
    assert not torch.equal(again.probs(root).dense(), plain.probs(root).dense())


def test_mixed_batch_draws_without_lists(made):
    scored = target(0.0, 1.0, 0.7)
    nodes, all_rows = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    said = scored.token(nodes, 1, all_rows)
    for b in range(3):
        assert said[b] == scored.take([b]).over(scored.take([b]).tree).token(nodes[:1], 1, all_rows[:1])[0]
    assert made == []


def test_lists_are_made_once_and_belong_to_the_rows_taken(made):
    part = target(0.0, 1.0, 0.7).take([2, 0])
    assert part.host_tree.tokens == part.tree.tokens.tolist() == [[0, 3], [0, 1]]
    assert part.host_tree is part.host_tree and len(made) == 1


def test_the_whole_round_decides_over_which_columns_some_sequences_are_told():
    mixed, cut = target(1.0, 1.0, 1.0, top_p=0.6), target(0.0, 1.0, 1.0, top_p=0.6)
    sequences, nodes = torch.tensor([1, 2]), torch.tensor([1, 0])
    assert mixed.probs(nodes, sequences).ids is None and cut.probs(nodes, sequences).ids is not None
    for scored in (mixed, cut):
        told, every = scored.probs(nodes, sequences).dense(), scored.probs(torch.tensor([0, 1, 0])).dense()
        assert torch.allclose(told, every[1:])
        some = scored.probs(torch.tensor([0, 1, 0]), where=torch.tensor([False, True, True])).dense()
        assert torch.equal(some[1:], every[1:])


def test_nodes_asked_for_together_are_told_what_each_is_told_alone_without_a_read():
    scored = target(0.0, 1.0, 0.7, top_p=0.6)
    nodes, where = torch.tensor([[0, 1], [1, 0], [0, 1]]), torch.tensor([[True, True], [True, True], [False, True]])
    with as_if_on_a_device(), HostReads() as reads:
        said, probs = scored.tokens(nodes, nodes, where), scored.dense(nodes, where)
    assert reads.total == 0
    for k in range(2):
        own = [scored.token(nodes[:, k], depth, where[:, k]) for depth in range(2)]  # a node is as deep as its number
        assert said[:, k].tolist() == [int(own[int(nodes[b, k])][b]) for b in range(3)]
        asked = where[:, k]
        assert torch.allclose(probs[asked, k], scored.probs(nodes[:, k]).dense()[asked])
    with as_if_on_a_device():
        assert torch.equal(scored.tokens(nodes, 1, where)[:, 1], scored.token(nodes[:, 1], 1, where[:, 1]))


def test_logits_are_those_of_the_nodes():
    scored = target(1.0, 1.0)
    assert torch.equal(scored.logits(torch.tensor([[1, 0], [0, 1]])), scored.output.logits[[1, 0, 2, 3]].view(2, 2, -1))


def test_logprobs_are_those_of_the_raw_logits_whatever_the_options():
    found = target(0.0, 0.7, top_p=0.5)
    rows = found.output.logits[2:].double().log_softmax(-1)
    for best in (0, 2, 9):
        told = found.logprobs(1, torch.tensor([0, 1]), [3, 4], best)
        assert [chosen for chosen, _ in told] == [rows[0, 3].item(), rows[1, 4].item()]
        for own, (_, pairs) in zip(rows, told, strict=True):
            right = own.topk(min(best, VOCAB))
            assert pairs == list(zip(right.indices.tolist(), right.values.tolist(), strict=True))


def test_a_best_token_is_none_where_logits_are_not_numbers():
    scored = target(0.0, 0.0)
    scored.output.logits[1, 3] = torch.nan
    assert (scored.best() < 0).tolist() == [[False, True], [False, False]]


@cache
def broken(backend: str) -> CpuRunner:
    """A model with a weight that is not a number, behind the embedding of token 60."""
    weights = tiny_weights()
    weights["model.embed_tokens.weight"][60, 3] = torch.nan
    config = replace(CONFIG, tie_embeddings=False)
    weights["lm_head.weight"] = tiny_weights()["model.embed_tokens.weight"]
    if backend == "float32":
        return CpuRunner(Decoder.from_tensors(config, weights, dtype=torch.float32))
    return CpuRunner(int8_decoder(config, int8_weights(config, weights)))


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.2}, {"temperature": 1.0}], ids=str)
@pytest.mark.parametrize("recipe", ["autoregressive", "prompt_lookup", "speculative_sampling"])
@pytest.mark.parametrize("backend", ["float32", "int8"])
def test_logits_that_are_not_numbers_end_the_request_with_the_reason(backend, recipe, options):
    made = recipes.build(recipe, broken(backend), **({"draft": "first:2"} if recipe == "speculative_sampling" else {}))
    prompts = [[5, 60, 7, 5, 60, 7, 5], [1, 2, 3, 1, 2, 3, 1]]
    wrong, right = serve(make_engine(broken(backend), made), prompts, SamplingParams(max_tokens=6, seed=1, **options))
    assert wrong.finish_reason == "error" and "logits are not numbers" in (wrong.error or "") and not wrong.output
    assert right.finish_reason == "length" and len(right.output) == 6, "the other request of the batch goes on"
