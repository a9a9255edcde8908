"""draftwood bench recipes from the command line, on a model that fits on a page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood import recipes
from draftwood.bench import other_processes
from draftwood.bench.spec.peers.ours import Ours
from draftwood.bench.spec.worker_pool import WorkerPool
from draftwood.cli.bench.recipes import able_recipes, with_own_rule
from draftwood.cli.main import app
from draftwood.errors import OptionError
from draftwood.models.loading.load import load
from draftwood.testing.folder import write_folder


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: Callable[..., None]) -> Callable[..., Any]:
    in_this_process()
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("hello hello", "1 1 1 1", "who who")))
    base = ["bench", "recipes", "--questions", str(file), "--model", str(write_folder(tmp_path / "model"))]
    return lambda *words: CliRunner().invoke(
        app, [*base, "--threads", "1", "--max-tokens", "6", "--warmup", "0", "--per-task", "2", *words]
    )


def test_every_recipe_is_in_the_table_or_named_with_the_reason(bench, tmp_path: Path):
    out = tmp_path / "recipes.md"
    done = bench("--recipes", "prompt_lookup,autoregressive,fr_spec", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert (
        "2 questions, 6 tokens, temperature 0" in done.stdout and "2 questions, 6 tokens, temperature 1" in done.stdout
    )
    assert "left out: fr_spec: " in done.stdout and "below 0.9 times plain decoding: " in done.stdout
    text = out.read_text()
    assert "## Greedy" in text and "## Temperature 1" in text and "| no row: " in text
    assert len([line for line in text.splitlines() if "`prompt_lookup`" in line]) == 3
    found = json.loads((tmp_path / "recipes-temperature-1.json").read_text())
    assert found["figures"]["overall"]["prompt_lookup"]["identical"] == 2


def test_an_interrupted_run_goes_on_and_ends_with_the_same_page(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stopped after one of two questions at temperature 1: nothing that is finished is asked again."""
    out, asked, real = tmp_path / "recipes.md", list[tuple[float, str]](), WorkerPool.ask

    def ask(pool: WorkerPool, method: str, item: Any, index: int) -> Any:
        asked.append((pool.settings.temperature, item.id))
        if len(asked) == 7:  # 2 methods, 2 questions at temperature 0; then the second question at temperature 1
            raise KeyboardInterrupt
        return real(pool, method, item, index)

    monkeypatch.setattr(WorkerPool, "ask", ask)
    stopped = bench("--recipes", "prompt_lookup", "--out", str(out))
    assert stopped.exit_code not in (0, 2) and not out.exists() and "the same command continues" in stopped.stderr
    asked.clear()
    done = bench("--recipes", "prompt_lookup", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert [temperature for temperature, _ in asked] == [1.0, 1.0] and len({question for _, question in asked}) == 1
    page = out.read_text()
    asked.clear()
    assert bench("--recipes", "prompt_lookup", "--out", str(out)).exit_code == 0
    assert asked == [] and out.read_text() == page


def test_another_text_is_status_one(bench, in_this_process):
    in_this_process(judge=lambda **_: {"status": "differs", "why": "planted"})
    done = bench("--recipes", "prompt_lookup", "--temperature", "0")
    assert done.exit_code == 1 and "NOT AS PROMISED" in done.stdout and "0/2" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "recipes.json"], "not named as a page of Markdown"),
        (["--out", "nowhere/recipes.md"], "no folder"),
        (["--recipes", "prompt_lokup"], "did you mean 'prompt_lookup'"),
        (["--store", "nowhere.store"], "does not exist"),
        (["--temperature", "0,-1"], "temperature"),
        (["--count", "3"], "--per-task"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(bench, words: list[str], said: str):
    done = bench(*words)
    assert done.exit_code == 2 and said in done.stderr


def test_files_are_given_only_to_recipes_that_cannot_do_without(monkeypatch: pytest.MonkeyPatch, folder: Path):
    real, tried = recipes.build, list[str]()

    def build(name: str, target: Any, **options: Any) -> Any:
        tried.append(name)
        if name in ("fr_spec", "hydra", "rest", "rest:store=a/dense.store"):
            raise OptionError(f"{name.partition(':')[0]}: does not fit\nhint: give another")
        return real("autoregressive", target)

    monkeypatch.setattr(recipes, "build", build)
    loaded, names = load(str(folder)), ["eagle3", "fr_spec", "hydra", "prompt_lookup", "rest"]
    able, left_out = able_recipes(loaded, names, {})
    assert able == ["eagle3", "prompt_lookup"] and left_out["hydra"] == "does not fit"
    files = {"texts": [Path("t.txt")], "store": [Path("a/dense.store"), Path("b/texts.store")]}
    able, left_out = able_recipes(loaded, names, files)
    assert able == ["eagle3", "fr_spec:texts=t.txt", "prompt_lookup", "rest:store=b/texts.store"]
    assert list(left_out) == ["hydra"]
    assert able_recipes(loaded, ["rest"], {"store": [Path("a/dense.store")]})[1] == {
        "rest": "does not fit; dense.store: does not fit"
    }
    assert not [name for name in tried if name.startswith(("eagle3:", "prompt_lookup:"))]


def test_recipes_keep_their_own_rule_above_temperature_0():
    assert with_own_rule("speculative_sampling", 0) == "speculative_sampling"
    assert with_own_rule("speculative_sampling", 1) == "speculative_sampling:verifier=rejection"
    assert with_own_rule("prompt_lookup", 1) == "prompt_lookup"


def test_a_run_counts_rounds_by_what_they_accepted(folder: Path):
    from draftwood.bench.spec.peers import Settings

    ours = Ours()
    ours.open(Settings(str(folder), 1, 12, methods=("autoregressive", "prompt_lookup")))
    prompt = [104, 101, 108, 108, 111, 32] * 3
    assert ours.answer("autoregressive", prompt, 0)["rounds"] == [0, 0, 0]
    drafted = ours.answer("prompt_lookup", prompt, 0)
    assert sum(drafted["rounds"]) <= drafted["passes"] and len(drafted["rounds"]) == 3
