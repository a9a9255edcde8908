"""What is read from the files is what the imported recipes say."""

from typing import get_type_hints

import pytest

from draftwood import recipes
from draftwood.cli import catalog
from draftwood.errors import UnknownNameError
from draftwood.option_parsing import wanted


def test_names_and_group_are_those_of_the_package():
    assert catalog.names() == recipes.names() and catalog.GROUP == recipes.GROUP


@pytest.mark.parametrize("name", recipes.names())
def test_entry_agrees_with_the_imported_recipe(name):
    entry, paper = catalog.entry(name), recipes.paper(name)
    assert (entry.title, entry.arxiv, entry.lossless) == (paper.title, paper.arxiv, paper.lossless)
    assert entry.lossy_with == paper.lossy_with
    hints = get_type_hints(recipes.load(name).build, include_extras=True)
    assert [(option, fits) for option, fits, _ in entry.options] == [
        (o, wanted(hints[o])) for o in recipes.options(name)
    ]
    assert (catalog.PACKAGE / entry.file).is_file()


@pytest.mark.parametrize("name", recipes.names())
def test_parts_of_a_recipe_are_files_and_cover_a_round(name):
    parts = catalog.entry(name).parts
    assert all((catalog.PACKAGE / part.file).is_file() for part in parts)
    assert {"drafter", "policy", "verifier", "controller"} <= {p.role for p in parts} or any(
        p.role == "built on" for p in parts
    )


def test_unknown_name_is_refused_with_a_guess():
    with pytest.raises(UnknownNameError, match="did you mean 'auto'"):
        catalog.entry("autoo")


def test_recipe_of_another_package_is_read_too(tmp_path, monkeypatch):
    from importlib.metadata import EntryPoint

    (tmp_path / "foreign_recipe.py").write_text(
        'PAPER = Paper(title="Foreign", arxiv="1", lossless=False)\ndef build(target, *, depth: int = 2): ...\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        catalog, "_plugins", lambda: {"foreign": EntryPoint("foreign", "foreign_recipe", catalog.GROUP)}
    )
    entry = catalog.entry("foreign")
    assert (entry.title, entry.lossless, entry.options) == ("Foreign", False, (("depth", "a whole number", "2"),))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "ModuleNotFoundError"),
        ("def build(:", "SyntaxError"),
        ("x = 1", "there is no PAPER"),
        ("1/0", "no PAPER"),
    ],
)
def test_a_broken_plug_in_is_listed_as_such_and_hides_nothing(tmp_path, monkeypatch, draftwood, source, said):
    from importlib.metadata import EntryPoint

    name = f"broken_{abs(hash(source))}"
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = name if source is not None else "no_such_package.recipe"
    monkeypatch.setattr(catalog, "_plugins", lambda: {"broken": EntryPoint("broken", module, catalog.GROUP)})
    shown = draftwood("papers")
    assert shown.exit_code == 0 and said in shown.stdout
    assert all(other in shown.stdout for other in recipes.names())
    assert draftwood("papers", "tree").exit_code == 0 and draftwood("papers", "broken").exit_code == 0


def test_page_is_shown_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "PACKAGE", tmp_path / "src" / "draftwood")
    assert catalog.page("auto") is None
    (tmp_path / "docs" / "papers").mkdir(parents=True)
    (tmp_path / "docs" / "papers" / "auto.md").write_text("# auto\n")
    assert catalog.page("auto") == "# auto\n"
