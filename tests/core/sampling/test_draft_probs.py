"""What drafted tokens were drawn from, over some columns or all, read token by token or brought onto the target's tokens."""

import torch

from draftwood.core.sampling.draft_probs import DraftProbs, align
from draftwood.core.sampling.probs import TokenProbs


def test_distributions_over_some_columns_become_dense() -> None:
    distributions = DraftProbs(torch.tensor([[0.25, 0.75]]), torch.tensor([3, 1]))
    assert distributions.dense(torch.tensor([0, -1]), 5).tolist() == [[0, 0.75, 0, 0.25, 0], [0] * 5]
    both = distributions.join(DraftProbs(torch.tensor([[1.0, 0.0]]), torch.tensor([0, 4])))
    assert both.dense(torch.tensor([1]), 5).tolist() == [[1, 0, 0, 0, 0]]


def test_single_tokens_of_distributions_are_those_of_the_whole_rows() -> None:
    prob = torch.softmax(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), -1)
    shared, own = torch.tensor([6, 0, 3, 5]), torch.tensor([[6, 0, 3, 5], [1, 2, 3, 4], [0, 2, 4, 6]])
    rows, tokens = torch.tensor([[0], [2], [-1], [1]]), torch.tensor([[0, 3, 7], [6, 1, 2], [0, 1, 2], [5, 4, 7]])
    for distributions, vocab_size in ((DraftProbs(prob), 4), (DraftProbs(prob, shared), 7), (DraftProbs(prob, own), 7)):
        asked = tokens.clamp_max(vocab_size)
        whole = torch.nn.functional.pad(
            distributions.dense(rows[:, 0], vocab_size), (0, 1)
        )  # the id `vocab_size` has nothing
        assert torch.equal(distributions.at(rows, asked, vocab_size), whole.gather(1, asked))


def test_p_and_q_are_brought_onto_the_same_columns() -> None:
    q = DraftProbs(torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.5, 0.5]]))
    p = TokenProbs(torch.tensor([0.6, 0.4, 1.0]), 4, torch.tensor([0, 2, 3]), torch.tensor([2, 1]))
    found = align(p, q, torch.tensor([0, -1]), torch.tensor([[2, 3], [4, 1]]))
    assert found.p.ids is not None and found.p.ids.tolist() == [[0, 2, 4, 3, 4], [3, 4, 4, 1, 4]]
    assert found.columns.tolist() == [[1, 3], [1, 3]], "the id 4 is no token; its column is an empty one"
    assert torch.allclose(found.q.prob[0], torch.tensor([0.1, 0.3, 0.0, 0.4, 0.2], dtype=torch.float64))
    assert not found.q.prob[1].any() and found.p.prob.dtype == torch.float64
    dense = align(TokenProbs(p.dense(), 4), q, torch.tensor([0, -1]), torch.tensor([[2, 3], [4, 1]]))
    assert torch.equal(dense.q.prob, torch.stack([q.prob[0], torch.zeros(4)])) and dense.columns.tolist()[0] == [2, 3]
