"""draftwood bench defaults from the command line, on a model that fits on a page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftwood import recipes
from draftwood.bench import other_processes
from draftwood.bench.spec.peers.ours import Ours
from draftwood.cli.bench.defaults import able_recipes, table, verdict
from draftwood.cli.main import app
from draftwood.errors import OptionError
from draftwood.models.loading.load import load
from draftwood.testing.folder import write_folder


@pytest.fixture
def defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: Callable[..., None]
) -> Callable[..., Any]:
    in_this_process()
    monkeypatch.setattr(other_processes, "look", lambda: {"load": [0.0], "foreign_cores": 0.0, "busiest": []})
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("hello hello", "1 1 1 1", "who who")))
    base = ["bench", "defaults", "--questions", str(file), "--model", str(write_folder(tmp_path / "model"))]
    return lambda *words: CliRunner().invoke(
        app, [*base, "--threads", "1", "--max-tokens", "6", "--warmup", "0", "--count", "2", *words]
    )


def test_every_recipe_is_in_the_table_or_named_as_left_out(defaults, tmp_path: Path):
    out = tmp_path / "d.json"
    names = ["prompt_lookup", "autoregressive", "fr_spec"]
    done = defaults("--recipes", ",".join(names), "--out", str(out))
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert {*result["settings"]["recipes"], *result["left_out"]} == set(names)
    assert "left out: fr_spec: " in done.stdout and "2 questions, 6 tokens, temperature 0" in done.stdout
    assert "rounds accepting all / some / none" in done.stdout
    assert result["figures"]["overall"]["prompt_lookup"]["identical"] == 2


def test_another_text_is_status_one(defaults, in_this_process):
    in_this_process(judge=lambda **_: {"status": "differs", "why": "planted"})
    done = defaults("--recipes", "prompt_lookup")
    assert done.exit_code == 1 and "NOT AS PROMISED" in done.stdout and "0/2" in done.stdout


def test_texts_are_given_to_recipes_that_cannot_do_without(monkeypatch: pytest.MonkeyPatch, folder: Path):
    real = recipes.build

    def build(name: str, target: Any, **options: Any) -> Any:
        if name in ("fr_spec", "hydra"):
            raise OptionError(f"{name}: needs something\nhint: give it")
        return real("autoregressive", target)

    monkeypatch.setattr(recipes, "build", build)
    loaded, names = load(str(folder)), ["fr_spec", "hydra", "prompt_lookup"]
    assert able_recipes(loaded, names, None) == (
        ["prompt_lookup"],
        {"fr_spec": "needs something", "hydra": "needs something"},
    )
    able, left_out = able_recipes(loaded, names, Path("t.txt"))
    assert able == ["fr_spec:texts=t.txt", "prompt_lookup"] and list(left_out) == ["hydra"]


def figures(speed: float, failures: int = 0) -> dict[str, Any]:
    return {
        "tokens_per_pass": 1.5, "speed_up": {"value": speed, "low": speed - 0.1, "high": speed + 0.1},
        "rounds": [3, 2, 1], "identical": 12, "near_ties": 0, "different": 0, "failures": failures,
    }  # fmt: skip


def test_a_recipe_below_nine_tenths_of_plain_decoding_is_flagged():
    found = {"figures": {"overall": {"a": figures(0.89), "b": figures(0.91), "c": figures(1.2, 1)}}}
    found |= {"lossy": ["b"], "left_out": {"d": "why"}}
    drawn = table(found, ("a", "b", "c"))
    rows = list(zip(*(column.cells for column in drawn.columns), strict=True))
    assert rows[0] == ("a", "1.50", "0.89 0.79-0.99", "3 / 2 / 1", "12/12", "SLOW")
    assert [row[-2:] for row in rows[1:]] == [("LOSSY", ""), ("12/12", "FAILED")]
    assert verdict(found, ("a", "b", "c")) == ["SLOW: below 0.9 times plain decoding: a", "left out: d: why"]
    assert verdict(found, ("b", "c"))[0] == "no recipe is below 0.9 times plain decoding"


def test_a_run_counts_rounds_by_what_they_accepted(folder: Path):
    from draftwood.bench.spec.peers import Settings

    ours = Ours()
    ours.open(Settings(str(folder), 1, 12, methods=("autoregressive", "prompt_lookup")))
    prompt = [104, 101, 108, 108, 111, 32] * 3
    assert ours.answer("autoregressive", prompt, 0)["rounds"] == [0, 0, 0]
    drafted = ours.answer("prompt_lookup", prompt, 0)
    assert sum(drafted["rounds"]) <= drafted["passes"] and len(drafted["rounds"]) == 3
