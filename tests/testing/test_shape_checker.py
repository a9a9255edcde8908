"""Signatures name shapes, and the shapes are what signatures say."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, install_import_hook, jaxtyped
from torch import Tensor

from draftwood.testing.shape_checker import shapes_only, uncalled
from native_levels import BEST, compiled

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "trees", "drafters", "cache", "runners", "verifiers")
ALSO = (  # tests of functions that these folders do not call, or only in tests left out below
    "tests/controllers/test_budget.py",
    "tests/controllers/stopping/test_learned_stop.py::test_the_judge_reads_the_hidden_states_of_the_parents",
    "tests/engine/test_engine.py::test_features_of_the_position_that_produced_each_root_are_handed_on",
    "tests/models/test_stacked_attention.py::test_slots_together_say_what_each_says_alone[0-float64-7]",
    "tests/testing/parts/test_started_drafter.py::test_started_sequences_ride_with_prompt_chunks_and_undrafted_ones",
    "tests/train/loop/test_trainer.py::test_batch_without_one_counted_position_is_no_loss",
    "tests/train/formats/test_medusa.py",
    "tests/train/formats/test_mlp.py",
)
# Most of the time, whole texts and enumerations, and nothing called that others do not call.
DEAR = (
    "test_random_weights_leave_the_text_alone",
    "test_drawn_chains_and_trees_run_under_rejection",
    "test_options_along_a_path_leave_the_text_alone",
    "test_a_draft_starts_from_the_feature_that_produced_the_root",
    "test_trimmed_head_guesses_among_kept_tokens_and_the_text_stays",
    "test_ranks_of_the_model_and_of_whole_distributions_grow_the_same_trees",
    "test_rows_after_every_round_are_those_of_a_fresh_head",
    "test_the_emitted_distribution_is_the_targets",
    "test_keeping_every_token_changes_nothing",
    "test_what_is_never_looked_at_would_never_have_been_selected",
    "test_ties_go_to_the_older_node_as_in_the_full_search",
    "test_last_bits_of_a_wide_distribution_rarely_change_the_pick",
    "test_output_is_the_targets",
    "test_perturbed_scores_give_the_same_trees",
    "test_paths_that_end_by_their_own_tokens_do_not_bias",
    "test_two_draws_reach_the_optimum_where_the_programme_holds_all_tokens",
    "test_any_two_distributions_come_out_exactly_and_near_the_optimum",
    "test_the_shipped_rules_keep_what_the_formulas_say",
    "test_paths_that_end_by_others_tokens_need_counting",
    "test_every_order_of_merged_draws_is_equally_likely",
    "test_a_sequence_gets_the_same_in_a_batch_with_other_options",
    "test_what_kernels_leave_comes_out_exactly",
    "test_what_is_left_of_a_sure_distribution_is_told_however_little_it_is",
    "test_a_drafter_that_breaks_because_of_what_it_drew_does_not_bias",
    "test_text_and_accounts_are_those_of_the_loop",
    "test_a_token_outside_can_still_be_emitted",
    "test_rows_are_drafted_alike_alone_and_in_a_batch_and_greedy_text_is_plain",
    "test_two_paths_keep_more_than_one_where_the_draft_is_far_and_less_where_it_is_close",
    "test_two_paths_keep_more_than_one_and_a_level_that_does_not_fit_is_not_drawn",
    "test_two_levels_have_the_targets_joint_distribution_within_any_budget",
    "test_options_are_exact_over_a_trimmed_distribution",
    "test_order_of_merged_draws_does_not_depend_on_the_batch",
    "test_control_a_pick_that_feels_empty_columns_depends_on_it",
    "test_no_formula_exceeds_its_bound_and_one_draw_makes_all_equal",
    "test_control_a_budget_that_looks_at_the_tokens_fails",
    "test_every_path_has_the_drafts_joint_distribution",
    "test_any_two_distributions_come_out_exactly_with_the_best_acceptance",
    "test_trees_have_the_distribution_of_a_race_of_whole_texts",
)


@pytest.mark.long
def test_the_rooms_keep_the_shapes_on_their_signatures(tmp_path: Path) -> None:
    """Every function that names shapes is called at least once under the checker, and none has a wrong shape."""
    left_out = " and ".join(f"not {name}" for name in DEAR)
    words = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", left_out, *(f"tests/{r}" for r in ROOMS), *ALSO]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env={**os.environ, "DRAFTWOOD_SHAPES": str(tmp_path / "uncalled")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    missed = [name for name in (tmp_path / "uncalled").read_text().split() if name.split(".")[1] in ROOMS]
    if compiled(BEST) is None:
        missed = [name for name in missed if "native" not in name]
    assert not missed, "no test that runs here calls these; test them, or take a test from DEAR"


def test_no_test_is_left_out_that_does_not_exist() -> None:
    sources = "".join(path.read_text() for room in ROOMS for path in (ROOT / "tests" / room).rglob("test_*.py"))
    assert [name for name in DEAR if f"def {name}(" not in sources] == []


def test_function_that_is_never_called_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a function more than the tests call. What only promises, or names no shape, need not be called."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").write_text("")
    (tmp_path / "planted" / "room.py").write_text(
        "from typing import Protocol\n"
        "from jaxtyping import Float\n"
        "from torch import Tensor\n"
        "class Promise(Protocol):\n"
        "    def kept(self, x: Float[Tensor, 'B']) -> None: ...\n"
        "class Keeper:\n"
        "    def kept(self, x: Float[Tensor, 'B']) -> None: ...\n"
        "def called(x: Float[Tensor, 'B'], other: 'Unknown' = 0) -> Float[Tensor, 'B']: return x\n"
        "def plain(x): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with install_import_hook("planted", "draftwood.testing.shape_checker.shapes_only"):
        room = importlib.import_module("planted.room")
        assert uncalled(["planted"]) == ["planted.room:Keeper.kept", "planted.room:called"]
        room.called(torch.ones(2))
        assert uncalled(["planted"]) == ["planted.room:Keeper.kept"]
        with pytest.raises(Exception, match="called"):  # a name that only type checkers know hides nothing
            room.called(torch.ones(2, 3))


def test_a_wrong_shape_is_noticed() -> None:
    def ratio(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        return p / q

    checked = jaxtyped(ratio, typechecker=shapes_only)
    checked(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(Exception, match=r"q|p"):
        checked(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(Exception, match=r"q|p"):
        checked(torch.ones(2, 3).long(), torch.ones(2, 3))
