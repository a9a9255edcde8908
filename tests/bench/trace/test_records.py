"""Options of a request survive in a trace, as far as JSON can hold them."""

import json

import torch

from draftwood.bench.trace.records import Asked, loaded_params, stored_params
from draftwood.core.sampling.params import SamplingParams


def back(params: SamplingParams) -> SamplingParams:
    stored = json.loads(json.dumps(stored_params(params), allow_nan=False))
    return loaded_params(Asked(0, [1], 5, [], stored))


def test_options_that_differ_from_the_default_are_kept():
    params = SamplingParams(
        temperature=0.7, top_p=0.9, logit_bias={3: -1.5, 4: -float("inf")}, bad_words=((1, 2), (3,)),
        stop_token_ids=(9,), min_tokens=2, max_tokens=7, tenant="a", seed=5,
    )  # fmt: skip
    assert back(params) == params
    assert stored_params(SamplingParams(seed=3)) == {}


def test_of_a_grammar_only_its_presence_is_known():
    params = SamplingParams(grammar=lambda tokens: torch.ones(4, dtype=torch.bool), seed=5)
    assert stored_params(params) == {"grammar": True}
    assert back(params) == SamplingParams(seed=5)
