"""The table of all recipes: figures beside claims, what was given, and why a recipe has no row."""

from pathlib import Path

import pytest

from draftwood import recipes
from draftwood.bench.report.recipes_page import claim, given, name_of, recipes_page, slow
from draftwood.bench.spec.run import PLAIN, results
from measured_log import FAST, MIXED, measured_log

STORE = "rest:store=/some/where/texts.store"


@pytest.fixture
def text(tmp_path: Path) -> str:
    left_out = {"hydra": "no weights | ship"}
    greedy = measured_log(tmp_path / "0.jsonl", methods=(PLAIN, FAST, MIXED, STORE), left_out=left_out)
    sampled = measured_log(tmp_path / "1.jsonl", methods=(PLAIN, MIXED), temperature=1.0, left_out=left_out)
    return recipes_page([greedy, sampled])


def lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| [`{name}`](../papers/{name}.md) |")]


def test_a_recipe_has_its_claim_beside_the_speed_up_at_each_temperature(text: str):
    overview, greedy, sampled = lines(text, MIXED)
    assert f"| {recipes.paper(MIXED).claim} |" in overview and "3.05x" in overview
    assert overview.count("0.90 0.67-1.11") == 2  # both runs have the same times
    assert greedy == sampled and greedy.endswith("| 2.00 | 62% | 3 / 9 / 3 | 3/3 |")


def test_a_recipe_measured_at_one_temperature_has_a_dash_at_the_other(text: str):
    overview, _ = lines(text, FAST)
    assert overview.endswith("| - |  |")


def test_what_was_given_and_what_is_missing_stand_in_the_table(text: str):
    assert lines(text, "rest")[0].endswith("| with store=texts.store |") and "/some/where" not in text
    assert lines(text, "hydra") == [
        "| [`hydra`](../papers/hydra.md) | 2.5x-2.7x, 1.3x over Medusa | - | - | no row: no weights \\| ship |"
    ]


def test_the_head_names_command_commit_machine_and_foreign_load(text: str):
    head = text.partition("## ")[0]
    assert "    draftwood bench recipes --questions question.jsonl\n" in head and head.count("commit abc1234") == 2
    assert "- greedy: smollm2, int8, 3 questions" in head and "- temperature 1: " in head
    assert "other processes used 0.10 cores on average, 0.20 at most" in head and "not valid" not in head


def test_a_busy_machine_is_named_in_the_head(tmp_path: Path):
    plan, log = measured_log(tmp_path / "0.jsonl")
    log.machine["0"]["foreign_cores"] = 5.0
    assert "times are not valid" in recipes_page([(plan, log)])


def test_a_recipe_below_nine_tenths_of_plain_decoding_is_named(tmp_path: Path):
    plan, log = measured_log(tmp_path / "0.jsonl")
    found = results(plan, log)
    assert slow(found, plan.methods) == [MIXED] and "Below 0.9 times plain decoding: eagle2." in recipes_page(
        [(plan, log)]
    )


def test_a_failed_answer_is_in_the_row(tmp_path: Path):
    plan, log = measured_log(tmp_path / "0.jsonl")
    next(a for a in log.answers() if a.method == MIXED).error = "out of memory"
    assert lines(recipes_page([(plan, log)]), MIXED)[1].endswith("| 1 FAILED |")


def test_options_that_are_a_recipes_own_are_not_called_given():
    assert given("speculative_sampling:verifier=rejection") == [] and name_of(STORE) == "rest"
    assert given("speculative_sampling:verifier=match") == ["verifier=match"]


def test_a_recipe_that_is_not_installed_has_no_claim_and_no_link(tmp_path: Path):
    assert claim("no_such_recipe") == claim(PLAIN) == "-"
    page = recipes_page([measured_log(tmp_path / "0.jsonl", left_out={"no_such_recipe": "gone"})])
    assert "| `no_such_recipe` | - | - | no row: gone |" in page
