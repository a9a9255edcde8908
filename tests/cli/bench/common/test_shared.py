"""What the measuring commands share: lists of numbers, and a place for the results that is tried before the work."""

from pathlib import Path

import pytest

from draftwood.cli.bench.common.shared import read_questions, recipe_names, whole_numbers, writable
from draftwood.errors import OptionError


@pytest.mark.parametrize(("text", "found"), [("4", [4]), ("8, 1,8", [1, 8]), ("16,2", [2, 16])])
def test_numbers_come_each_once_and_in_order(text: str, found: list[int]):
    assert whole_numbers("sizes", text) == found


@pytest.mark.parametrize("text", ["", "0", "1,", "1,-2", "1.5", "many"])
def test_what_is_no_whole_number_is_refused(text: str):
    with pytest.raises(OptionError, match=r"sizes cannot be .*\nhint: whole numbers"):
        whole_numbers("sizes", text)


@pytest.mark.parametrize("text", ["", " , "])
def test_where_no_recipe_is_named_an_example_of_the_option_is_given(text: str):
    with pytest.raises(
        OptionError, match=rf"no recipes are named: '{text}'\nhint: for example --recipes prompt_lookup"
    ):
        recipe_names(text)
    with pytest.raises(OptionError, match=r"hint: for example --drafters x$"):
        recipe_names(text, "--drafters x")


def test_trial_leaves_a_file_as_it_was_and_nothing_where_nothing_was(tmp_path: Path):
    for name, text in (("empty.json", ""), ("full.json", "{}")):
        (tmp_path / name).write_text(text)
        writable(tmp_path / name)
        assert (tmp_path / name).read_text() == text
    writable(tmp_path / "new.json")
    link = tmp_path / "link.json"
    link.symlink_to("target.json")
    writable(link)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.json", "full.json", "link.json"] and link.is_symlink()


def test_place_that_cannot_be_written_is_refused(tmp_path: Path):
    with pytest.raises(OptionError, match="there is no folder"):
        writable(tmp_path / "nowhere" / "r.json")
    with pytest.raises(OptionError, match="cannot be written"):
        writable(tmp_path)


def test_tenants_and_predictions_of_questions_are_said_to_be_unused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "q.jsonl"
    for entry, said in (('{"prompt": "a"}', ""), ('{"prompt": "a", "tenant": "b"}', "not used here: the tenants and")):
        file.write_text(entry)
        assert [q.turns for q in read_questions(file)] == [("a",)]
        assert capsys.readouterr().err.startswith(said) and (said or not capsys.readouterr().err)
