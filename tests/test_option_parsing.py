"""Words of a command line become what build() asks for, or are refused with the names there are."""

import inspect
from pathlib import Path
from typing import Any, Literal

import pytest

from draftwood.errors import OptionError
from draftwood.option_parsing import biases, converted, listed, pairs


def build(
    target: Any,
    *,
    depth: int = 4,
    rate: float = 0.5,
    greedy: bool = False,
    weights: str = "auto",
    rule: Literal["match", "rejection"] = "match",
    limit: int | None = None,
    widths: tuple[int, ...] = (4, 2),
    folder: Path | None = None,
    hook: Any = None,
    table: dict[str, int] | None = None,
    bare=3,
) -> None: ...


KNOWN = {k: p for k, p in inspect.signature(build).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("depth=6", 6),
        ("rate=1e-2", 0.01),
        ("greedy=yes", True),
        ("greedy=0", False),
        ("weights=a=b", "a=b"),
        ("rule=rejection", "rejection"),
        ("limit=none", None),
        ("limit=9", 9),
        ("widths=8,4,2", (8, 4, 2)),
        ("folder=x/y", Path("x/y")),
        ("hook=h", "h"),
        ("bare=5", 5),
    ],
)
def test_value_has_the_type_of_the_option(word, value):
    assert converted("r", build, KNOWN, [word]) == {word.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["depht=6"], "r has no option 'depht'\nhint: it has depth=4, rate=0.5"),
        (["depth=many"], "r: depth cannot be 'many'\nhint: a whole number"),
        (["greedy=perhaps"], "yes or no"),
        (["rule=judge"], "match, rejection"),
        (["depth"], "is not KEY=VALUE"),
        (["=6"], "is not KEY=VALUE"),
        (["depth=6", "depth=7"], "depth is given twice: '6' and '7'"),
        (["limit=x"], "a whole number"),
        (["table=a"], "no command line can spell"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(words, said):
    with pytest.raises(OptionError) as refused:
        converted("r", build, KNOWN, words)
    assert said in str(refused.value)


def test_recipe_without_options_says_so():
    with pytest.raises(OptionError, match="it has no options"):
        converted("r", lambda target: None, {}, ["depth=1"])


def test_biases_are_ids_and_numbers():
    assert biases(["3=-inf", "4=1.5"]) == {3: float("-inf"), 4: 1.5}
    for word in ("x=1", "3=much", "3"):
        with pytest.raises(OptionError):
            biases([word])


def test_only_the_first_sign_parts_key_and_value():
    assert pairs(["a=b=c"], "--option") == {"a": "b=c"}


def test_a_list_given_in_python_may_be_spelt_as_on_the_command_line():
    assert listed("r", build, {"widths": "2,2", "weights": "a,b", "depth": 3}) == {
        "widths": (2, 2),
        "weights": "a,b",  # text stays text
        "depth": 3,
    }
    assert listed("r", build, {"widths": (4, 1)}) == {"widths": (4, 1)}
    with pytest.raises(OptionError, match=r"r: widths cannot be 'wide'\nhint: a whole number"):
        listed("r", build, {"widths": "wide"})
