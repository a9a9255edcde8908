"""What the target guesses ahead changes how fast a text is written, not the text."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED
from draftwood.core.verdict import Verdict
from draftwood.drafters.phrases.lookahead import Lookahead
from draftwood.errors import OptionError
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.match import Match

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": lambda tokens: torch.arange(61) % 2 == len(tokens) % 2},
}


class TakesProbes(Match):
    """Wrong on purpose: probes are accepted like drafted tokens, and their own outputs are not looked at."""

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree = proposal.tree
        every = replace(tree, role=torch.full_like(tree.role, SCORED))
        first = tree.live & (tree.parents == 0)
        child = torch.where(first.any(1), first.shape[1] - 1 - first.flip(1).int().argmax(1), -1)
        if bool((child < 0).any()):
            return Match.verify(self, proposal, target, rnd)
        after = Scored(target.output, every, rnd).best().gather(1, child[:, None])[:, 0]
        return Verdict(torch.stack([torch.zeros_like(child), child], dim=1), torch.ones_like(child), after)


def served(recipe: Recipe, way: str) -> list[Request]:
    options = {"temperature": 1.0, "max_tokens": 24, **WAYS[way]}
    return serve(make_engine(TARGET, recipe), PROMPTS, [SamplingParams(seed=i, **options) for i in range(8)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", ["", ":size=paper", ":ngram=3:window=3:guesses=2"])
def test_the_text_is_that_of_plain_decoding(way: str, options: str) -> None:
    done = served(recipes.build(f"lookahead{options}", TARGET), way)
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), way)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("all", "some", "none")]
    assert not options or way != "greedy" or (rounds[0] + rounds[1] > 0 and rounds[2] > 0), rounds


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_rule_that_accepts_probes_writes_another_text(way: str) -> None:
    plain = recipes.build("autoregressive", TARGET)
    wrong = replace(recipes.build("lookahead", TARGET, size="paper"), verifier=TakesProbes())
    assert [r.output for r in served(wrong, way)] != [r.output for r in served(plain, way)]


def test_names_carry_options() -> None:
    recipe: Any = recipes.build("lookahead:ngram=4:window=3:guesses=2:copy=no", TARGET)
    assert recipe.drafter == Lookahead(4, 3, 2, False)
    assert (recipe.controller.depth, recipe.controller.nodes) == (4, 2 * 3 + 3 * 3 - 1)
    published: Any = recipes.build("lookahead:size=paper", TARGET)
    assert published.drafter == Lookahead(5, 7, 7) and published.controller.nodes == 7 * 4 + 6 + 3 * 7
    chosen: Any = recipes.build("lookahead", TARGET)
    assert chosen.drafter.worth is not None and "plain decoding" in chosen.notes[0]
    for wrong in ({"ngram": 1}, {"window": 0}, {"guesses": 0}, {"size": "huge"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            recipes.build("lookahead", TARGET, **wrong)
