"""Sets of skipped sub-layers as text and as files, and what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.layers import skip_set
from draftwood.drafters.layers.skip_set import SkipSet, read_skip_set, write_file
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner

LAYERS = st.frozensets(st.integers(0, 40))


@given(LAYERS, LAYERS)
def test_text_and_back(attention: frozenset[int], mlp: frozenset[int]) -> None:
    made = SkipSet(attention, mlp)
    assert SkipSet.parse(str(made)) == made and len(made) == len(attention) + len(mlp)


@pytest.mark.parametrize("text", ["", "b3", "a3,m4", "a-1", "a3+", "3", "a 3", "A0", "none+a0", "a" + "9" * 5000])
def test_words_that_are_no_sub_layer_are_named(text: str) -> None:
    for read in (SkipSet.parse, lambda word: read_skip_set(word, tiny_runner())):
        with pytest.raises(OptionError, match="is no sub-layer"):
            read(text)


def test_a_layer_the_target_does_not_have_and_a_set_that_leaves_nothing_are_refused() -> None:
    with pytest.raises(OptionError, match=r"layers \[4\] are not among the target's 4\nhint: from 0 to 3"):
        SkipSet.of([4]).check(4)
    with pytest.raises(OptionError, match="leaves nothing of the target's 2 layers\nhint: skip fewer"):
        SkipSet.of([0, 1], [0, 1]).check(2)
    assert SkipSet.of([0, 1], [0]).check(2)


def test_a_file_is_read_for_its_own_target_alone(tmp_path: Path) -> None:
    target, path = tiny_runner(), tmp_path / "skip.json"
    write_file(path, target, SkipSet.of([1], [2]), {"tried": 3})
    assert read_skip_set(str(path), target) == SkipSet.of([1], [2]) and json.loads(path.read_text())["tried"] == 3
    assert not list(tmp_path.glob("*.partial"))
    path.write_text(path.read_text().replace('"target": ""', '"target": "another"'))
    with pytest.raises(OptionError, match="was searched for the target another"):
        read_skip_set(str(path), target)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        *(
            b'{"target": "", "attention": %s, "mlp": []}' % x
            for x in (b'"01"', b"[0.9]", b"[true]", b"[Infinity]", b"{}")
        ),
    ],
    ids=lambda content: repr(content[:60]),
)
def test_a_file_that_is_no_set_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "skip.json"
    path.write_bytes(content)
    with pytest.raises(OptionError, match="cannot be read as a set of skipped layers"):
        read_skip_set(str(path), tiny_runner())


def test_where_none_ships_the_error_says_how_to_search_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tiny_runner()
    with pytest.raises(OptionError, match="draftwood search layers --model"):
        read_skip_set("auto", target)
    with pytest.raises(OptionError, match="cannot be read"):
        read_skip_set(str(tmp_path / "missing.json"), target)
    monkeypatch.setattr(skip_set, "WEIGHTS", tmp_path)
    write_file(skip_set.shipped_file(target), target, SkipSet.of([2]), {})
    assert read_skip_set("auto", target) == SkipSet.of([2])
