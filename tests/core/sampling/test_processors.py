"""Penalties and bans look at a node's own path, and at prompt and output as users know it from elsewhere."""

from typing import Any

import pytest
import torch

from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.processors import adjust as adjust_all


def adjust(logits: torch.Tensor, made: Request, path: list[int], ids: list[int] | None = None) -> torch.Tensor:
    """One node."""
    found, failed = adjust_all(logits[None], made, [path], None if ids is None else torch.tensor(ids))
    assert not failed
    return found[0]


LOGITS = torch.tensor([1.0, -1.0, 2.0, 0.5, 3.0, -2.0], dtype=torch.float64)


def request(output: tuple[int, ...] = (), **options: Any) -> Request:
    made = Request(0, [0, 1, 1], SamplingParams(**options), 6, eos=(5,))
    made.output = list(output)
    return made


def test_repetition_counts_prompt_output_and_path_and_divides_or_multiplies() -> None:
    got = adjust(LOGITS, request((2,), repetition_penalty=2.0), [5])
    assert got.tolist() == [0.5, -2.0, 1.0, 0.5, 3.0, -4.0]


def test_presence_and_frequency_count_output_and_path_but_not_the_prompt() -> None:
    got = adjust(LOGITS, request((2, 2), presence_penalty=0.5, frequency_penalty=0.1), [2, 3])
    assert torch.allclose(got, LOGITS - torch.tensor([0, 0, 0.8, 0.6, 0, 0], dtype=torch.float64))


def test_the_counts_follow_the_output_as_it_grows() -> None:
    r = request((2,), frequency_penalty=1.0)
    adjust(LOGITS, r, [])
    r.output += [2, 4]
    assert (LOGITS - adjust(LOGITS, r, [])).tolist() == [0, 0, 2, 0, 1, 0]


def test_a_bad_word_is_banned_only_where_its_beginning_stands() -> None:
    r = request((3,), bad_words=((4,), (3, 2), (1, 3, 0)))
    assert adjust(LOGITS, r, []).isinf().tolist() == [True, False, True, False, True, False]
    assert adjust(LOGITS, r, [2]).isinf().tolist() == [False, False, False, False, True, False]


def test_no_end_before_min_tokens_along_the_path() -> None:
    r = request((2,), min_tokens=3, stop_token_ids=(4,))
    assert adjust(LOGITS, r, []).isinf().tolist() == [False] * 4 + [True, True]
    assert adjust(LOGITS, r, [1]).isinf().any()
    assert not adjust(LOGITS, r, [1, 1]).isinf().any()


def test_a_bias_is_added_and_a_ban_stays_a_ban() -> None:
    got = adjust(LOGITS, request(logit_bias={0: 2.0, 1: float("-inf")}), [])
    assert got[0] == 3.0 and got[1] == float("-inf")


def test_a_grammar_sees_the_output_and_the_path() -> None:
    seen: list[list[int]] = []

    def grammar(tokens: list[int]) -> torch.Tensor:
        seen.append(list(tokens))
        return torch.tensor([False, True, True, False, False, False])

    got = adjust(LOGITS, request((2,), grammar=grammar), [3])
    assert seen == [[2, 3]] and got.isinf().tolist() == [True, False, False, True, True, True]


def test_options_act_on_tokens_also_where_columns_are_few() -> None:
    ids = [4, 2, 0]
    got = adjust(LOGITS[ids], request((2,), repetition_penalty=2.0, logit_bias={4: 1.0}), [], ids)
    assert got.tolist() == [4.0, 1.0, 0.5]


def test_options_that_ban_every_token_are_an_error() -> None:
    found = adjust_all(LOGITS.expand(2, -1), request(grammar=lambda t: torch.tensor([bool(t)] * 6)), [[], [1]])[1]
    assert list(found) == [0] and "no token is left" in found[0]


def test_a_grammar_that_fails_costs_the_nodes_it_failed_at() -> None:
    found = adjust_all(LOGITS.expand(2, -1), request(grammar=lambda t: torch.ones(6 // len(t)).bool()), [[], [1]])[1]
    assert list(found) == [0] and "the grammar failed: ZeroDivisionError" in found[0]


OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": -0.4},
    "bans": {"bad_words": ((4,), (3, 2), (1, 3, 0)), "min_tokens": 4},
    "all": {"repetition_penalty": 0.7, "bad_words": ((3, 3),), "min_tokens": 3, "logit_bias": {0: 1.0, 3: -2.0}},
}


@pytest.mark.parametrize("ids", [None, [4, 2, 0, 5, 3]], ids=["whole", "some columns"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_many_nodes_at_once_are_each_node_alone(options: dict[str, Any], ids: list[int] | None) -> None:
    paths = [[], [3], [3, 2], [3, 3, 3], [2, 0, 1], [4, 5], [5, 1]]
    made = request((2, 3), **options)
    x = torch.randn(len(paths), 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x if ids is None else x[:, ids]
    together, failed = adjust_all(x, made, paths, None if ids is None else torch.tensor(ids))
    assert not failed
    for row, logits, path in zip(together, x, paths, strict=True):
        assert torch.equal(row, adjust(logits, made, path, ids))
        assert torch.equal(row, by_hand(logits, made, path, ids))


def by_hand(logits: torch.Tensor, made: Request, path: list[int], ids: list[int] | None) -> torch.Tensor:
    """One token after another, over the whole vocabulary."""
    p, found, text = made.params, [], [*made.output, *path]
    for token, x in zip(range(6) if ids is None else ids, logits, strict=True):
        whole = [*made.prompt, *text, token]
        x = x + p.logit_bias.get(token, 0.0)
        if any(whole[-len(w) :] == list(w) for w in p.bad_words) or (token in made.ends and len(text) < p.min_tokens):
            x = x - torch.inf
        if token in whole[:-1] and p.repetition_penalty != 1:
            x = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
        times = text.count(token)
        found.append(x - p.frequency_penalty * times - p.presence_penalty * (times > 0))
    return torch.stack(found)
