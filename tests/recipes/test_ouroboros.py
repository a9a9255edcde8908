"""Phrases that the target taught a pool change how fast a text is written, not the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.match import Match

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
TWICE = [*PROMPTS, *PROMPTS]  # the second time the pool knows some answers
LATER = dict.fromkeys(range(8, 16), 30)
LAYERS = "inner=speculative_sampling:draft=first:3"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": lambda tokens: torch.arange(61) % 2 == len(tokens) % 2},
}


class TakesTheDraft(Match):
    """Wrong on purpose: the first drafted token is taken unseen."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        below = proposal.tree.children(torch.zeros_like(proposal.tree.tokens[:, 0]))
        child = torch.where(below.any(1), below.int().argmax(1), -1)
        after = target.best().gather(1, child.clamp_min(0)[:, None])[:, 0]
        return Verdict(torch.stack([torch.zeros_like(child), child], dim=1), (child >= 0).long(), after)


def served(recipe: Recipe, way: str) -> list[Request]:
    options = {"temperature": 1.0, "max_tokens": 24, **WAYS[way]}
    each = [SamplingParams(seed=i % 8, **options) for i in range(16)]
    return serve(make_engine(TARGET, recipe), TWICE, each, arrive=LATER)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", ["", "size=paper:", "length=3:phrase=2:phrases=2:"])
def test_the_text_is_that_of_plain_decoding(way: str, options: str) -> None:
    done = served(recipes.build(f"ouroboros:{options}{LAYERS}", TARGET), way)
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), way)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("all", "some", "none")]
    assert rounds[1] > 0 and rounds[2] > 0, rounds
    if options.startswith("length") and way in ("greedy", "sampled"):
        assert sum(r.sources.count(1) for r in done) > 0, "tokens of phrases were accepted"


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_rule_that_accepts_unseen_writes_another_text(way: str) -> None:
    plain = recipes.build("autoregressive", TARGET)
    wrong = replace(recipes.build(f"ouroboros:size=paper:{LAYERS}", TARGET), verifier=TakesTheDraft())
    assert [r.output for r in served(wrong, way)] != [r.output for r in served(plain, way)]


@pytest.mark.parametrize("kind", ["eagle3", "language"])
def test_any_drafter_of_chains_can_be_lengthened(kind: str, tmp_path: Path) -> None:
    head = write_head(tmp_path / f"{kind}.safetensors", random_head(kind, TARGET))
    name = {"eagle3": "eagle3", "language": "fast_draft"}[kind]
    done = served(recipes.build(f"ouroboros:length=2:phrase=2:inner={name}:weights={head}", TARGET), "sampled")
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), "sampled")]
    assert {r.stats.disabled for r in done} == {None}


def test_names_carry_options() -> None:
    recipe: Any = recipes.build(f"ouroboros:length=4:phrase=2:phrases=3:copy=no:{LAYERS}", TARGET)
    drafter = recipe.drafter
    assert (drafter.length, drafter.phrase, drafter.count, drafter.copy, drafter.priced) == (4, 2, 3, False, False)
    assert recipe.controller == Fixed(6, 10)
    published: Any = recipes.build(f"ouroboros:size=paper:{LAYERS}", TARGET)
    assert published.controller == Fixed(18, 30) and published.drafter.least == 0.0
    chosen: Any = recipes.build("ouroboros", TARGET)
    assert chosen.drafter.priced and isinstance(chosen.controller, Priced) and "first" in chosen.notes[0]
    for wrong in ({"length": 0}, {"phrase": 0}, {"phrases": 0}, {"size": "huge"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            recipes.build("ouroboros", TARGET, **wrong)
