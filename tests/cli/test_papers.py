"""A reader finds the recipes, their options and their files."""

from pathlib import Path

import pytest

from draftwood import recipes
from draftwood.cli import catalog, open_llm
from draftwood.errors import DraftwoodError
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of


def test_list_shows_every_recipe_with_its_title(draftwood):
    done = draftwood("papers")
    assert done.exit_code == 0 and "\x1b" not in done.stdout
    for name in recipes.names():
        assert name in done.stdout and recipes.paper(name).title in done.stdout


def test_lossy_recipe_is_labelled(draftwood, monkeypatch):
    from dataclasses import replace

    real = catalog.entry
    monkeypatch.setattr(catalog, "entry", lambda name: replace(real(name), lossless=name != "auto"))
    (marked,) = (line for line in draftwood("papers").stdout.splitlines() if line.rstrip().endswith("LOSSY"))
    assert marked.startswith("auto ")
    assert "LOSSY" in draftwood("papers", "auto").stdout


def test_option_that_makes_a_recipe_lossy_is_named(draftwood):
    shown = draftwood("papers").stdout
    for name in recipes.names():
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{name} "))
        changed_by = recipes.paper(name).lossy_with
        assert line.rstrip().endswith("yes *" if changed_by else "yes")
        assert (f"* {name} is LOSSY with {changed_by}\n" in shown) == bool(changed_by)
    assert "lossless  yes; LOSSY with roots=target\n" in draftwood("papers", "dynamic_mcsd").stdout


def test_details_show_the_claim_of_the_authors_where_there_is_one(draftwood):
    assert f"claim     {recipes.paper('eagle2').claim} (the authors')\n" in draftwood("papers", "eagle2").stdout
    assert "claim" not in draftwood("papers", "autoregressive").stdout.partition("no options")[0]


def test_details_show_options_with_defaults_and_the_page(draftwood, monkeypatch):
    monkeypatch.setattr(catalog, "page", lambda name: f"# All about {name}\n")
    shown = draftwood("papers", "speculative_sampling").stdout
    assert "2211.17192" in shown and "a whole number from 0 to 4096" in shown
    assert "# All about speculative_sampling" in shown and "--option inner=auto" in shown
    assert "no options" in draftwood("papers", "autoregressive").stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fr_spec", "--option texts=FILE"),
        ("rsd", "--option inner=auto"),
        ("eagle3", "--option weights=auto"),
    ],
)
def test_the_example_can_be_typed_as_it_stands(draftwood, tmp_path: Path, weights: Loaded, name: str, words: str):
    assert f"--recipe {name} {words} ..." in draftwood("papers", name).stdout
    text = tmp_path / "text.txt"
    text.write_text("some plain text")
    chosen = open_llm.recipe_options(name, words.replace("FILE", str(text)).split()[1::2])
    assert recipes.build(name, runner_of(weights), **chosen).lossless


@pytest.mark.parametrize(("name", "option"), [("rest", "store"), ("dresd", "store"), ("hydra", "weights")])
def test_the_example_has_the_option_that_a_recipe_cannot_do_without(draftwood, weights: Loaded, name: str, option: str):
    assert recipes.paper(name).needs == option
    assert f"--recipe {name} --option {option}=FILE ..." in draftwood("papers", name).stdout
    with pytest.raises(DraftwoodError):
        recipes.build(name, runner_of(weights))


def test_tree_names_the_file_of_every_part(draftwood):
    shown = draftwood("papers", "tree").stdout
    assert "recipes/auto.py" in shown and "drafters/retrieval/ngram.py" in shown and "Priced" in shown


def test_unknown_recipe_is_refused(draftwood):
    done = draftwood("papers", "speculative_samplin")
    assert done.exit_code == 2 and "did you mean 'speculative_sampling'" in done.stderr
