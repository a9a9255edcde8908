"""SpecDec++: a small net on the draft's hidden states ends a chain that is likely to be rejected."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.rejection_risk import RejectionRisk
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nothing import Nothing
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import TARGETS, served

INNER = "speculative_sampling:draft=first:3"


def undecided(target: Runner, **more: Any) -> Head:
    """A net that is sure of some tokens and not of others."""
    head = random_head("acceptance", target, depth=3)
    tensors = {name: 0.3 * x if "blocks" in name else x for name, x in head.tensors.items()}
    return replace(head, tensors={**tensors, "last.bias": torch.tensor([0.0, 0.5])}, ids=None, **more)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("weights") / "net.safetensors", undecided(tiny_runner())))


def built(target: Runner, weights: str, **options: Any) -> Any:
    usual = {"inner": INNER, "weights": weights, "size": "paper", "threshold": 0.5, "depth": 5}
    return recipes.build("specdec_pp", target, **{**usual, **options})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("backend", TARGETS)
def test_20_prompts_in_batches_of_8_have_the_text_of_plain_decoding(
    backend: str, temperature: float, weights: str
) -> None:
    target = TARGETS[backend]()
    plain, _ = served(target, None, temperature)
    made = built(target, weights, verifier="match")
    done, seen = served(target, made.drafter, temperature, made.policy, made.verifier, made.controller)
    print(backend, temperature, dict(seen.rounds))
    assert [r.output for r in done] == [r.output for r in plain]
    assert {r.stats.disabled for r in done} == {None}
    assert min(seen.rounds[kind] for kind in ("all", "some", "none")) > 0
    drafted = torch.zeros(5, dtype=torch.long)
    for r in done:
        drafted[: len(r.stats.drafted)] += torch.tensor(r.stats.drafted)
    assert drafted[1] > drafted[3] > 0 or drafted[2] > drafted[4] > 0, "some drafts end and some go on"


def test_greedy_requests_under_rejection_have_the_text_of_plain_decoding(weights: str) -> None:
    target = TARGETS["float64"]()
    made = built(target, weights)
    done, seen = served(target, made.drafter, 0.0, made.policy, made.verifier, made.controller)
    assert [r.output for r in done] == [r.output for r in served(target, None, 0.0)[0]]
    assert isinstance(made.verifier, Rejection) and min(seen.rounds.values()) > 0


@pytest.mark.parametrize("verifier", ["rejection", "match"])
def test_where_nothing_may_be_read_the_drafts_are_the_same(verifier: str, weights: str) -> None:
    target = TARGETS["device"]()
    made = built(target, weights, verifier=verifier)
    parts = made.drafter, 1.0, made.policy, made.verifier, made.controller
    here, first = served(target, *parts)
    with as_if_on_a_device():
        there, then = served(target, *parts)
    assert [(r.output, r.stats.drafted) for r in there] == [(r.output, r.stats.drafted) for r in here]
    assert first.rounds == then.rounds


def test_by_default_drafts_are_made_where_they_pay_and_the_banner_says_so(weights: str) -> None:
    target = tiny_runner()
    recipe = built(target, weights, size="auto", threshold=None)
    plain = isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0)
    assert plain != isinstance(recipe.controller, RejectionRisk)
    assert "risk of a rejection exceeds" in recipe.notes[0] and "expected speed" in recipe.notes[0]
    paper = built(target, weights, depth=7, least=3, threshold=0.3)
    assert (paper.controller.depth, paper.controller.least, paper.controller.threshold) == (7, 3, 0.3)
    assert paper.policy.draw is Draw.IID and "whether drafts pay or not" in paper.notes[0]
    assert isinstance(built(target, weights, verifier="match").verifier, Match)


def test_a_measured_threshold_takes_the_weight_out_of_the_odds(weights: str, tmp_path: Path) -> None:
    target = tiny_runner()
    given, timed = (built(target, weights, threshold=h).controller for h in (0.5, None))
    assert 0 <= timed.threshold <= 1
    hidden = torch.randn(1, 6, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(timed.judge(hidden).logit() - given.judge(hidden).logit(), torch.full((1, 6), log(6.0)))
    record = {"options": {"inner": INNER, "weight": 2.0}}
    other = write_head(tmp_path / "light.safetensors", undecided(target, record=record))
    light = built(target, str(other), threshold=None).controller
    torch.testing.assert_close(light.judge(hidden).logit() - given.judge(hidden).logit(), torch.full((1, 6), log(2.0)))


def test_weights_of_another_drafter_target_or_kind_are_refused(weights: str, tmp_path: Path) -> None:
    target = tiny_runner()
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'acceptance' ship.*draftwood train specdec_pp"):
        recipes.build("specdec_pp", target)
    record = {"options": {"inner": "fast_draft"}}
    other = write_head(tmp_path / "other.safetensors", undecided(target, record=record))
    with pytest.raises(CompositionError, match=r"(?s)'fast_draft', 32 wide.*hint: inner=fast_draft, or train others"):
        built(target, str(other))
    narrow = random_head("acceptance", tiny_runner(config=replace(CONFIG, hidden_size=16)))
    head = replace(narrow, config=replace(narrow.config, target_hidden=CONFIG.hidden_size))
    with pytest.raises(CompositionError, match=r"16 wide; those of .* are 32 wide"):
        built(target, str(write_head(tmp_path / "narrow.safetensors", head)))
    with pytest.raises(CompositionError, match="NGram shows none"):
        built(target, weights, inner="prompt_lookup")
    for wrong in ({"threshold": 1.5}, {"depth": -1}, {"least": -1}, {"verifier": "block"}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
            built(target, weights, **wrong)
