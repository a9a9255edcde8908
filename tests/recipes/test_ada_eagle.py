"""AdaEAGLE: a small net says before every round how many tokens are drafted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.predicted_length import PredictedLength
from draftwood.core.protocols import Runner
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nothing import Nothing
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.verifiers.rejection import Rejection
from own_layers import TARGETS, served

INNER = "speculative_sampling:draft=first:3"


def undecided(target: Runner, **more: Any) -> Head:
    """A net whose lengths differ from text to text."""
    head = random_head("length", target, depth=3, stages=4)
    tensors = {name: 0.3 * x if "blocks" in name else x for name, x in head.tensors.items()}
    return replace(head, tensors={**tensors, "last.bias": torch.tensor([2.0])}, ids=None, **more)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("weights") / "length.safetensors", undecided(tiny_runner())))


def built(target: Runner, weights: str, **options: Any) -> Any:
    return recipes.build("ada_eagle", target, **{"inner": INNER, "weights": weights, "size": "paper", **options})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("ddd", [None, 0.02])
def test_20_prompts_in_batches_of_8_have_the_text_of_plain_decoding(
    backend: str, temperature: float, ddd: float | None, weights: str
) -> None:
    target = TARGETS[backend]()
    plain, _ = served(target, None, temperature)
    made = built(target, weights, ddd=ddd)
    done, seen = served(target, made.drafter, temperature, made.policy, made.verifier, made.controller)
    print(backend, temperature, ddd, dict(seen.rounds))
    assert [r.output for r in done] == [r.output for r in plain]
    assert {r.stats.disabled for r in done} == {None}
    assert min(seen.rounds[kind] for kind in ("all", "some", "none")) > 0
    if ddd is None:
        lengths = {len(r.stats.drafted) for r in done}
        assert len(lengths) > 1 and sum(r.stats.target_passes for r in done) > sum(seen.rounds.values()), (
            "some are plain"
        )


@pytest.mark.parametrize("backend", ["float64", "int8"])
def test_a_head_on_features_is_drafted_with_too(backend: str, weights: str, tmp_path: Path) -> None:
    target = TARGETS[backend]()
    head = write_head(tmp_path / "eagle3.safetensors", random_head("eagle3", target))
    for temperature in (0.0, 1.0):
        plain, _ = served(target, None, temperature)
        made = built(target, weights, inner=f"eagle3:weights={head}")
        done, _ = served(target, made.drafter, temperature, made.policy, made.verifier, made.controller)
        assert [r.output for r in done] == [r.output for r in plain]
        assert sum(r.stats.draft_tokens for r in done) > 0 and {r.stats.disabled for r in done} == {None}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_may_be_read_the_drafts_are_the_same(temperature: float, weights: str) -> None:
    target = TARGETS["device"]()
    made = built(target, weights)
    parts = made.drafter, temperature, made.policy, made.verifier, made.controller
    here, first = served(target, *parts)
    with as_if_on_a_device():
        there, then = served(target, *parts)
    assert [(r.output, r.stats.drafted) for r in there] == [(r.output, r.stats.drafted) for r in here]
    assert first.rounds == then.rounds


def test_by_default_drafts_are_made_where_they_pay_and_the_banner_says_so(weights: str) -> None:
    target = tiny_runner()
    recipe = built(target, weights, size="auto")
    plain = isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0)
    tried = "timed beside busy processes" in recipe.notes[0]
    assert (plain or tried) != isinstance(recipe.controller, PredictedLength)
    assert "a net predicts" in recipe.notes[0] and "expected speed" in recipe.notes[0]
    assert ("this is plain decoding" in recipe.notes[0]) == plain
    paper = built(target, weights, depth=3, ddd=0.4, verifier="rejection")
    assert isinstance(paper.drafter, DraftModel) and isinstance(paper.verifier, Rejection)
    assert (paper.controller.depth, paper.controller.unsure) == (3, 0.4)
    assert built(target, weights).controller.depth == 4, "as long as the net was trained for"
    assert "whether drafts pay or not" in paper.notes[0]


def test_weights_of_another_drafter_target_or_kind_are_refused(weights: str, tmp_path: Path) -> None:
    target = tiny_runner()
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'length' ship.*draftwood train ada_eagle"):
        recipes.build("ada_eagle", target)
    record = {"options": {"inner": "eagle3"}}
    other = write_head(tmp_path / "other.safetensors", undecided(target, record=record))
    with pytest.raises(CompositionError, match=r"(?s)drafts of 'eagle3' are right, not those of.*hint: inner=eagle3"):
        built(target, str(other))
    narrow = random_head("length", tiny_runner(config=replace(CONFIG, hidden_size=16)))
    with pytest.raises(CompositionError, match="reads features 16 wide, the target's are 32"):
        built(target, str(write_head(tmp_path / "narrow.safetensors", narrow)))
    with pytest.raises(CompositionError, match="holds weights of kind 'acceptance'"):
        built(target, str(write_head(tmp_path / "kind.safetensors", random_head("acceptance", target))))
    for wrong in ({"ddd": 1.5}, {"depth": -1}, {"verifier": "block"}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} cannot be"):
            built(target, weights, **wrong)
