"""Penalties and bans look at a node's own path, and at prompt and output as users know it from elsewhere."""

from typing import Any

import pytest
import torch

from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.processors import adjust
from draftwood.errors import OptionError

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
    with pytest.raises(OptionError, match="no token is left"):
        adjust(LOGITS, request(grammar=lambda t: torch.zeros(6).bool()), [])
