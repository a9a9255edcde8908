"""Options of commands reach the sampling params; what cannot be honoured is refused before a model is opened."""

import inspect

import pytest

from draftwood.cli.options import said_top_p, sampling, temperatures, with_sampling
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError


def test_defaults_are_those_of_the_library():
    assert sampling() == SamplingParams()


def test_every_option_arrives():
    wishes = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "max_tokens": 9,
        "min_tokens": 2,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "ignore_eos": True,
        "logprobs": 4,
    }
    expected = SamplingParams(
        **wishes, stop=("x", "y"), stop_token_ids=(3, 4), include_stop_str_in_output=True, logit_bias={5: -1.0}
    )
    given = {"stop": ["x", "y"], "stop_token_id": [3, 4], "include_stop": True, "logit_bias": ["5=-1"]}
    assert sampling(**wishes, **given) == expected


@pytest.mark.parametrize("wish", [{"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"stop": [""]}])
def test_impossible_wish_is_refused(wish):
    with pytest.raises(OptionError):
        sampling(**wish)


def test_command_takes_the_shared_options_behind_its_own():
    heard: list[object] = []

    @with_sampling
    def command(word: str = "hi", *, params: SamplingParams) -> None:
        """What it does."""
        heard.extend([word, params])

    names = list(inspect.signature(command).parameters)
    assert names == ["word", *inspect.signature(sampling).parameters] and command.__doc__ == "What it does."
    given = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    command(**given | {"word": "ho", "top_k": 7})
    assert heard == ["ho", SamplingParams(top_k=7)]


def test_temperatures_are_numbers_each_once():
    assert temperatures("1,0,0.7,1") == [1.0, 0.0, 0.7] and temperatures("0.3", above_zero=True) == [0.3]


@pytest.mark.parametrize(
    ("text", "above_zero", "said"),
    [
        ("warm", False, "numbers, for example 0,1"),
        ("", True, "numbers, for example 0.3,1"),
        ("-1", False, "0 or more"),
        ("nan", False, "0 or more"),
        ("inf", True, "above 0, up to a million$"),
        ("0,1", True, "above 0; at 0 every exact rule"),
    ],
)
def test_temperatures_that_are_none_are_refused(text: str, above_zero: bool, said: str):
    with pytest.raises(OptionError, match=rf"levels cannot be '{text}'\nhint: {said}"):
        temperatures(text, "levels", above_zero=above_zero)


def test_top_p_is_said_where_it_leaves_out_tokens():
    assert (said_top_p(1.0), said_top_p(0.95)) == ("", ", top-p 0.95")
