"""One type, three layouts: every operation says the same in each."""

import torch

from draftwood.core.sampling.probs import TokenProbs


def packed() -> TokenProbs:
    prob, ids = torch.tensor([1.0, 0.5, 0.5, 0.2, 0.3, 0.5]), torch.tensor([4, 0, 3, 1, 2, 5])
    return TokenProbs(prob, 6, ids, torch.tensor([1, 2, 3]))


def layouts() -> list[TokenProbs]:
    return [packed(), packed().table(), TokenProbs(packed().dense(), 6)]


def test_distributions_of_two_widths_can_be_put_together() -> None:
    narrow = TokenProbs(torch.tensor([[1.0], [1.0]]), 6, torch.tensor([[3], [4]]))
    wide = TokenProbs(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), 6, torch.tensor([[0, 1], [0, 5]]))
    whole = TokenProbs(torch.eye(6)[:2], 6)
    where = torch.tensor([True, False])
    assert narrow.put(wide, where).dense().tolist() == [[0.5, 0.5, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0]]
    assert wide.put(narrow, where).dense().tolist() == [[0, 0, 0, 1, 0, 0], [0.5, 0, 0, 0, 0, 0.5]]
    assert whole.put(narrow, where).dense().tolist() == [[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]]


def test_packed_distributions_can_be_taken_and_spread() -> None:
    few = packed()
    dense = few.dense()
    assert dense.tolist()[1] == [0.5, 0, 0, 0.5, 0, 0] and few.owner().tolist() == [0, 1, 1, 2, 2, 2]
    for each in layouts():
        assert len(each) == 3 and torch.equal(each.dense(), dense)
        assert torch.equal(each.take(torch.tensor([2, 0, 2])).dense(), dense[[2, 0, 2]])
    for each in (few, TokenProbs(dense, 6)):
        assert each.scatter(torch.tensor([0, 2, 3]), 5).dense().sum(1).tolist() == [1, 0, 1, 1, 0]
    none = few.take(torch.zeros(0, dtype=torch.int64))
    empty = none.scatter(torch.zeros(0, dtype=torch.int64), 1).table()
    assert empty.ids is not None and empty.ids.tolist() == [[6]], "an empty distribution is an empty column"


def test_arithmetic_says_the_same_in_every_layout() -> None:
    noise = torch.Generator().manual_seed(1)
    q, w = torch.rand(3, 6, generator=noise), torch.tensor([1.0, 0.7, 0.4])
    for each in layouts():
        assert torch.allclose(each.mass(), torch.ones(3, dtype=torch.float64))
        assert each.at(torch.tensor([4, 1, 2])).tolist() == torch.tensor([1.0, 0.0, 0.3]).tolist()
        own = q
        if each.ids is not None:
            whole = torch.nn.functional.pad(q, (0, 1))
            own = whole.gather(1, each.ids) if each.count is None else q[each.owner(), each.ids]
        left = each.minus(TokenProbs(own, 6, each.ids, each.count), w)
        assert torch.allclose(left.dense(), (w[:, None] * packed().dense() - q).clamp_min(0))


def test_a_residual_is_normalised_and_p_serves_where_nothing_is_left() -> None:
    p = TokenProbs(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), 2)
    q = TokenProbs(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), 2)
    assert p.residual(q).prob.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    rest = p.minus(q, torch.ones(2, dtype=torch.float64))
    assert torch.equal(p.unless_empty(rest).prob, torch.stack([p.prob[0], rest.prob[1]])) and rest.prob[1, 0] > 0
    assert q.without(torch.tensor([[0], [1]])).prob.tolist() == [[0.0, 1.0], [1.0, 0.0]]
