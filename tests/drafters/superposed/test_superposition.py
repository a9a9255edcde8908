"""One pass for all drafts: its input is a mixture of embeddings, its scores weigh the model against n-grams."""

import math
from collections.abc import Sequence

import pytest
import torch

from draftwood.drafters.superposed.beam import Beam, Draft, Ranked
from draftwood.drafters.superposed.ngrams import TextCounts
from draftwood.drafters.superposed.superposition import UNKNOWN, Superposition, mixed_input, ranked
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner

RANKED = Ranked([3, 4, 5], [2.0, 1.0, 0.0], 3.0)
BEAM = Beam(2, (Draft((1, 2), -0.1, (-0.1, -0.2)), Draft((1, 9), -0.2, (-0.1, -0.3))))


def counts_of(*, small: bool) -> TextCounts:
    """Of a single text, or of one that is taken for a whole corpus."""
    counts = TextCounts(small)
    counts.read([1, 2, 4, 1, 2, 4, 1, 2, 3])
    return counts


def tail(path: Sequence[int], count: int) -> list[int]:
    return list(path)[-count:]


def test_published_numbers_are_the_defaults() -> None:
    few, many = Superposition(3), Superposition(10)
    assert (few.kept, few.pass_temperature, few.alpha) == (9, pytest.approx(0.06), 0.54)
    assert (many.kept, many.pass_temperature) == (30, pytest.approx(0.12))


def test_what_never_followed_in_a_corpus_drops_out_and_an_unknown_draft_falls_behind() -> None:
    s = Superposition(2, temperature=1.0)
    known, unknown = s.gains(BEAM, [RANKED] * 2, counts_of(small=False), tail)
    p = RANKED.tempered(1.0)
    assert known[2] == -math.inf and min(known[:2]) > -math.inf
    assert known[1] - known[0] == pytest.approx(0.46 * (p[1] - p[0]) + 0.54 * math.log(2)), "4 followed twice, 3 once"
    assert unknown == pytest.approx([(1 - 0.54) * each + UNKNOWN for each in p])


def test_a_single_text_rules_nothing_out() -> None:
    s = Superposition(2, temperature=1.0)
    known, unknown = s.gains(BEAM, [RANKED] * 2, counts_of(small=True), tail)
    p = RANKED.tempered(1.0)
    assert unknown == pytest.approx(p) and min(known) > -math.inf
    assert known[1] - known[0] > p[1] - p[0], "4 followed 1 2 more often than 3"


@pytest.mark.parametrize("alpha", [0.0, 0.54])
def test_the_model_alone_decides_the_first_tokens_and_where_no_n_gram_is_known(alpha: float) -> None:
    s = Superposition(2, temperature=1.0, alpha=alpha)
    assert s.gains(Beam(2), [RANKED], counts_of(small=False), tail) == [RANKED.tempered(1.0)]
    lost = Beam(2, (Draft((50,), -0.1, (-0.1,)),))
    assert s.gains(lost, [RANKED], counts_of(small=False), tail) == [RANKED.tempered(1.0)]


def test_best_tokens_come_with_their_logits_and_banned_ones_not_at_all() -> None:
    logits = torch.tensor([[0.5, 2.0, -torch.inf, 1.0], [-torch.inf] * 4, [1.0, -torch.inf, -torch.inf, 3.0]])
    first, none, two = ranked(logits, 3, torch.tensor([10, 20, 30, 40]))
    assert (first.tokens, first.logits) == ([20, 40, 10], [2.0, 1.0, 0.5])
    assert first.total == pytest.approx(float(logits[0].logsumexp(0)), abs=1e-6)
    assert none.tokens == [] and two.tokens == [40, 10]


def test_a_pass_reads_the_weighted_sum_of_embeddings_and_one_draft_alone_its_own() -> None:
    runner = tiny_runner(1)
    single = Beam(1, (Draft((7,), -0.5, (-0.5,)),))
    x = mixed_input(runner, [BEAM, single], [0, 1], [4, 0], [9, 3])
    want = torch.stack([weight * runner.embed(torch.tensor(token)) for token, weight in BEAM.weights().items()]).sum(0)
    assert x.hidden is not None and torch.allclose(x.hidden[0], want)
    assert torch.equal(x.hidden[1], runner.embed(torch.tensor(7))), "exactly, so that it is plain decoding"
    columns = x.to_host()
    assert (columns.entries, columns.parents, x.positions.tolist(), x.want.tolist()) == (
        [4, 0],
        [3, -1],
        [9, 3],
        [0, 1],
    )


@pytest.mark.parametrize("wrong", [{"k": 0}, {"candidates": 1}, {"temperature": 0.0}, {"alpha": 1.0}])
def test_what_no_superposition_can_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
        Superposition(**{"k": 3, **wrong})  # type: ignore[arg-type]
