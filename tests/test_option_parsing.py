"""Words of a command line become what build() asks for, or are refused with the names there are."""

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from draftwood.errors import OptionError
from draftwood.option_parsing import (
    DRAFTER,
    NotWith,
    OfDrafter,
    OnlyWith,
    Range,
    biases,
    checked,
    converted,
    marked,
    pairs,
    wanted,
)


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
        (["rule=judge"], "match or rejection"),
        (["depth"], "is not KEY=VALUE"),
        (["=6"], "is not KEY=VALUE"),
        (["depth=6", "depth=7"], "depth is given twice: '6' and '7'"),
        (["limit=x"], "a whole number"),
        (["table=a"], "a dict, from Python only or none"),
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
    assert checked("r", build, {"widths": "2,2", "weights": "a,b", "depth": 3}) == {
        "widths": (2, 2),
        "weights": "a,b",  # text stays text
        "depth": 3,
    }
    assert checked("r", build, {"widths": [4, 1]}) == {"widths": (4, 1)}
    with pytest.raises(OptionError, match=r"r: widths cannot be 'wide'\nhint: a list with commas, each a whole number"):
        checked("r", build, {"widths": "wide"})


def declared(
    target: Any,
    *,
    weights: OfDrafter[str] = "auto",
    nodes: Annotated[int, Range(1, 64)] = 4,
    share: Annotated[float, Range(0, 1)] = 0.5,
    widths: tuple[Annotated[int, Range(1)], ...] = (2, 1),
    method: Literal["c", "s"] = "s",
    beam: Annotated[int | None, OnlyWith("method", "s")] = None,
    paths: Annotated[int, NotWith(("widths",))] = 3,
) -> None: ...


@pytest.mark.parametrize(
    ("key", "good", "wrong", "said"),
    [
        ("nodes", 64, 65, "r: nodes cannot be 65\nhint: a whole number from 1 to 64"),
        ("nodes", 1, 0, "from 1 to 64"),
        ("nodes", 2, True, "a whole number"),
        ("nodes", 2, 2.0, "a whole number"),
        ("nodes", 2, "2", "a whole number"),
        ("nodes", 2, None, "a whole number"),
        ("share", 1, 1.5, "r: share cannot be 1.5\nhint: a number from 0 to 1"),
        ("share", 0.5, float("nan"), "a number from 0 to 1"),
        ("widths", (1, 2), (1, 0), "each a whole number at least 1"),
        ("widths", (), 3, "a list with commas"),
        ("method", "c", "d", "r: method cannot be 'd'\nhint: c or s"),
        ("beam", None, "x", "a whole number or none"),
        ("weights", Path("a/b"), 7, "r: weights cannot be 7\nhint: text"),
        ("width", None, 7, "r has no option 'width'\nhint: it has weights=auto, nodes=4"),
    ],
)
def test_python_values_are_checked_against_the_signature(key, good, wrong, said):
    if key in declared.__kwdefaults__:
        checked("r", declared, {key: good})
    with pytest.raises(OptionError) as refused:
        checked("r", declared, {key: wrong})
    assert said in str(refused.value)


def test_words_of_a_command_line_are_checked_in_the_same_way():
    known = {key: inspect.signature(declared).parameters[key] for key in declared.__kwdefaults__ or ()}
    assert converted("r", declared, known, ["nodes=64", "widths=3,1"]) == {"nodes": 64, "widths": (3, 1)}
    for word in ("nodes=65", "share=nan", "widths=3,0", "method=d"):
        with pytest.raises(OptionError, match="cannot be"):
            converted("r", declared, known, [word])


def test_numbers_of_numpy_are_numbers():
    np = pytest.importorskip("numpy")
    assert checked("r", declared, {"nodes": np.int64(3), "share": np.float32(0.5)}) == {"nodes": 3, "share": 0.5}


def test_an_option_that_would_have_no_effect_is_refused():
    assert checked("r", declared, {"beam": 2}) == {"beam": 2}
    with pytest.raises(
        OptionError, match=r"r: beam 2 is used only with method=s\nhint: add method=s, or leave out beam"
    ):
        checked("r", declared, {"beam": 2, "method": "c"})
    with pytest.raises(
        OptionError, match=r"paths 2 and widths \(1,\) exclude each other\nhint: leave out paths or widths"
    ):
        checked("r", declared, {"paths": 2, "widths": (1,)})


def test_options_of_the_drafter_are_marked():
    assert marked(declared, DRAFTER) == {"weights"}


def test_what_fits_is_said_in_words():
    assert wanted(Annotated[int, Range(1)]) == "a whole number at least 1"
    assert wanted(Literal["a", "b"]) == "a or b"
    assert wanted(bool) == "yes or no" and wanted(float | None) == "a number or none"
