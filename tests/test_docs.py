"""The documents are true: their code runs, their links lead somewhere, their commands and options exist."""

import dataclasses
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from draftwood import recipes, trees, verifiers
from draftwood.cli.main import app
from draftwood.cli.open_llm import recipe_options
from draftwood.errors import DraftwoodError, OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^\s*draftwood ((?:bench |train |datastore |search )?[a-z0-9_,]+)(.*)$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_the_lines_of_python_in_the_readme_work() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_recipe_has_a_page_and_a_row_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in recipes.names():
        page = ROOT / "docs" / "papers" / f"{name}.md"
        assert page.exists() and f"docs/papers/{name}.md" in readme, name
        for option in recipes.options(name):
            assert f"`{option}`" in page.read_text(), f"{name}: option {option} is not explained"


@pytest.mark.long
def test_the_lines_of_python_in_the_concepts_work() -> None:
    for page in sorted((ROOT / "docs" / "concepts").glob("*.md")):
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert done.returncode == 0 and done.stdout.strip(), f"{page.name}: {done.stderr}"


OF_RULES = ("needs", "lossless", "draws", "shapes")


def built_in(package: ModuleType, *methods: str) -> dict[str, type]:
    """Classes of a folder with these methods, by name."""
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    own = [c for m in modules for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__]
    public = [c for c in own if not c.__name__.startswith("_")]
    return {c.__name__: c for c in public if all(hasattr(c, name) for name in methods)}


def parts() -> dict[str, type]:
    return built_in(trees, "start", "expand", "select") | built_in(verifiers, "verify")


def faults(text: str) -> list[str]:
    """What the tables of parts lack or have wrong."""
    rows = {
        cells[0].strip("`"): cells[1:]
        for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
        if len(cells) == 5 and cells[0].startswith("`")
    }
    known = parts()
    wrong = [f"{name} is not in the tables" for name in known if name not in rows]
    for name, (path, arguments, draws, shapes) in rows.items():
        part = known.get(name)
        if part is None or path != f"`{part.__module__}`":
            wrong.append(f"{name} is not in {path}")
            continue
        fields = [field.name for field in dataclasses.fields(part) if field.name not in (*OF_RULES, "shape")]
        wrong += [f"{name}: argument {field} is not explained" for field in fields if f"`{field}`" not in arguments]
        if hasattr(part, "verify"):
            rule = part()
            for said, kind, true in ((draws, "draws", rule.draws), (shapes, "shapes", rule.shapes)):
                if set(said.split(", ")) != {each.value for each in true}:
                    wrong.append(f"{name}: {kind}")
    return wrong


def test_the_tables_of_parts_name_every_policy_and_rule() -> None:
    text = (ROOT / "docs" / "concepts" / "parts.md").read_text()
    assert len(parts()) >= 19
    assert faults(text) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("| `Paths` |", "| Paths |", "Paths is not in the tables"),
        ("`draftwood.trees.best_and_one`", "`draftwood.trees.best`", "BestAndOne is not in `draftwood.trees.best`"),
        ("`counted`", "counted", "PathBlock: argument counted is not explained"),
        ("| iid, distinct | a chain |", "| iid | a chain |", "Block: draws"),
        ("| iid | a chain, independent paths |", "| iid | a chain |", "PathBlock: shapes"),
    ],
)
def test_a_fault_in_the_tables_of_parts_is_found(old: str, new: str, fault: str) -> None:
    text = (ROOT / "docs" / "concepts" / "parts.md").read_text()
    assert text.count(old) == 1
    assert faults(text.replace(old, new)) == [fault]


def shown(name: str, text: str) -> list[tuple[str, list[str]]]:
    """Recipe and options of the `generate` commands that a page has for its recipe."""
    lines = [line.split("   #")[0] for line in text.splitlines() if line.startswith("draftwood generate ")]
    words = [shlex.split(line)[2:] for line in lines]
    found = [(each[each.index("--recipe") + 1], each) for each in words if "--recipe" in each]
    chosen = [(recipe, [b for a, b in pairwise(each) if a == "--option"]) for recipe, each in found]
    return [(recipe, options) for recipe, options in chosen if recipe.partition(":")[0] == name]


@pytest.mark.parametrize("name", recipes.names())
def test_the_page_of_a_recipe_shows_how_to_run_it(name: str) -> None:
    commands = shown(name, (ROOT / "docs" / "papers" / f"{name}.md").read_text())
    assert commands, f"{name}: its page has no line `draftwood generate ... --recipe {name}`"
    for recipe, options in commands:
        recipe_options(recipe, options)


def test_a_page_without_its_command_or_with_a_strange_option_is_found() -> None:
    assert shown("eagle", 'draftwood generate "x" --recipe eagle3\n') == []
    (command,) = shown("eagle", 'draftwood generate "x" --recipe eagle --option no_such=1     # a remark\n')
    with pytest.raises(OptionError):
        recipe_options(*command)


@pytest.mark.long
def test_recipes_can_be_built_as_their_pages_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # a page may name README.md as a text
    target = runner_of(load("smollm2"))
    for name in recipes.names():
        for recipe, options in shown(name, (ROOT / "docs" / "papers" / f"{name}.md").read_text()):
            if not any("=heads/" in option or "=stores/" in option for option in options):  # made one line before
                recipes.build(recipe, target, **recipe_options(recipe, options))


@pytest.mark.long
def test_the_readme_marks_the_recipes_that_need_something_to_be_given() -> None:
    target, lacking = runner_of(load("smollm2")), set[str]()
    for name in recipes.names():
        try:
            recipes.build(name, target)
        except DraftwoodError:
            lacking.add(name)
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if "(needs `" in line]
    assert {re.findall(r"papers/(\w+)\.md", row)[0] for row in rows} == lacking


def strange_figures(text: str, results: str) -> list[str]:
    """Of "figure (from-to)" those that no page of results has; there they stand as "figure from-to"."""
    found = re.findall(r"(\d\.\d\d) \((\d\.\d\d-\d\.\d\d)\)", " ".join(text.split()))
    return [f"{value} {interval}" for value, interval in found if f"{value} {interval}" not in results]


def test_figures_with_intervals_on_pages_of_papers_stand_in_the_results() -> None:
    results = "\n".join(page.read_text() for page in (ROOT / "docs" / "results").glob("*.md"))
    pages = [page.read_text() for page in (ROOT / "docs" / "papers").glob("*.md")]
    assert sum("**Measured**" in text for text in pages) >= 9
    assert [figure for text in pages for figure in strange_figures(text, results)] == []
    invented = "kept 1.06 (1.00-1.11) times, and 9.06 (9.00-9.11)\ntimes, and 1.02\n(1.00-9.99) times"
    assert strange_figures(invented, results) == ["9.06 9.00-9.11", "1.02 1.00-9.99"]


def documented_commands() -> list[tuple[str, tuple[str, ...]]]:
    text = "\n".join(page.read_text().replace("\\\n", " ") for page in PAGES)
    found = {(m[1], tuple(re.findall(r"(--[a-z-]+)", m[2].split("#")[0]))) for m in COMMAND.finditer(text)}
    return sorted(found)


def test_commands_and_options_in_the_documents_exist() -> None:
    commands = documented_commands()
    assert len(commands) >= 6
    helps: dict[str, str] = {}
    for command, options in commands:
        if command not in helps:
            done = CliRunner().invoke(app, [*command.split(), "--help"])
            assert done.exit_code == 0, f"draftwood {command}: {done.stderr}"
            helps[command] = done.stdout
        for option in options:
            assert option in helps[command], f"draftwood {command} has no {option}"
