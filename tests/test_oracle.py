"""A drafter that holds a copy of the target is right every time: depth K gives K + 1 tokens a pass, whatever it reads.

The copies see nothing but what a trained net would see, so a feature, row or position that is off by one shows at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL, CacheSpec, ForwardInput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.nets.runners.runner import DrawnByLevels
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.features import Features
from draftwood.drafters.on_features.heads import Heads
from draftwood.runners.with_cache import WithCache
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import read_features
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PROMPTS = [[5, 7, 1, 3], list(range(1, 40)), [9, 9, 2], [5, 7, 1, 3, 8, 8]]
DEPTH, LENGTH = 3, 21  # one token from the prompt's own pass, then five whole rounds


def final(target: Runner, text: Sequence[int]) -> Tensor:
    """The target's last features of a whole text. [T, H]"""
    ids = torch.tensor([list(text)])
    return read_features(target, ids, torch.ones_like(ids, dtype=torch.bool), frozenset({FINAL}))[FINAL][0]


def run(target: Any, drafter: Any, policy: Any, nodes: int = DEPTH) -> list[Request]:
    recipe = Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=Fixed(depth=DEPTH, nodes=nodes))
    recipe.check(target)
    params = SamplingParams(temperature=0.0, max_tokens=LENGTH)
    requests = serve(make_engine(target, recipe, slots=3, chunk=16), PROMPTS, params)
    assert not any(r.stats.disabled for r in requests)
    return requests


@cache
def small() -> Any:
    return tiny_runner(1)


@cache
def plain(target: Any) -> list[list[int]]:
    return [r.output for r in run(target, Nothing(), Chain(draw=Draw.GIVEN))]


class FeatureCopy(DrawnByLevels, WithCache):
    """A feature net that is the target: from its rows it reads off the text, and runs the target on it.

    It is shown embeddings as features, so a row knows the token before it too: both must tell the same text.
    """

    taps = (0,)
    ids = None
    max_positions = CONFIG.max_positions

    def __init__(self, target: Runner, late: int = 0, held: DenseCache | None = None) -> None:
        super().__init__(held)
        self.target, self.late = target, late
        self.table = target.embed(torch.arange(CONFIG.vocab_size))

    def open(self, slots: int, capacity: int) -> "FeatureCopy":
        specs = [CacheSpec(name, 1, 1, torch.float64) for name in ("before", "token")]
        return FeatureCopy(self.target, self.late, DenseCache(specs, slots=slots, capacity=capacity))

    def fuse(self, features: Sequence[Tensor]) -> Tensor:
        return features[0]

    def execute(self, x: ForwardInput, only: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert x.hidden is not None and only is None
        cache = self.cache
        before = torch.cdist(x.hidden, self.table).argmin(1)
        distributions: dict[int, Tensor] = {}
        for s in cache.stage(x):
            inside = slice(s.start, s.stop)
            at = s.committed + x.entries[inside]
            for name, values in (("before", before), ("token", x.ids)):
                cache.store(name)[s.slot, 0, at, 0] = values[inside].double()
            for i in range(s.start, s.stop):
                seen = torch.ones(s.staged, dtype=torch.bool) if s.visible is None else s.visible[i - s.start]
                rows = [*range(s.committed), *(s.committed + seen.nonzero()[:, 0]).tolist()]
                old, new = (cache.store(name)[s.slot, 0, rows, 0].long().tolist() for name in ("before", "token"))
                assert old[1:] == new[:-1], "a feature stands beside the wrong token"
                assert int(x.positions[i]) == len(rows) - 1
                text = [old[0], *new]
                distributions[i] = self.target.head(
                    final(self.target, text)[-1 - min(self.late, len(text) - 1)], norm=False
                )
        return self.table[x.ids], torch.stack([distributions[i] for i in x.want.tolist()]) if len(
            x.want
        ) else torch.zeros(0, 61)

    def ranked(
        self, logits: Tensor, temperature: list[float], k: int, only: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        prob, tokens = logits.softmax(-1).topk(k)
        return prob, tokens

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Tensor | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> None:
        """Step by step."""

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        """The target's own weights never change."""


def feature_copy(target: Any, late: int = 0) -> Features:
    return Features(FeatureCopy(target, late))


@dataclass
class StageCopy:
    """Stages that know the target's texts: they find the feature they are shown among those of the texts, and read on."""

    features: Tensor  # [N, H] of all positions of all texts
    ahead: Tensor  # [N, stages]: the tokens behind the one that each position produced
    late: int = 0
    reads_tokens: bool = False
    stages: int = DEPTH
    ids: None = None

    def start(self, f: Tensor) -> Tensor:
        return torch.cdist(f, self.features).argmin(1)[:, None].double()

    def step(self, index: int, carry: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return carry, self.ahead[carry[:, 0].long(), max(index - self.late, 0)][:, None].double()

    def outputs(self, start: Tensor, roots: Tensor) -> Tensor:
        return torch.stack([self.step(index, start, roots)[1] for index in range(self.stages)], dim=1)

    def logits(self, y: Tensor, columns: Tensor | None, stage: Tensor | None = None) -> Tensor:
        return 30.0 * torch.nn.functional.one_hot(y[..., 0].long(), CONFIG.vocab_size).double()


def stage_copy(target: Any, *, late: int = 0, reads_tokens: bool = False) -> Heads:
    features, ahead = [], []
    for prompt, answer in zip(PROMPTS, plain(target), strict=True):
        text = [*prompt, *answer]
        features.append(final(target, text))
        padded = torch.tensor([*text, *[0] * (DEPTH + 2)])
        ahead.append(padded.unfold(0, DEPTH, 1)[2 : 2 + len(text)])
    return Heads(StageCopy(torch.cat(features), torch.cat(ahead), late, reads_tokens))  # type: ignore[arg-type]


COPIES = {
    "draft model": DraftModel,
    "feature head": feature_copy,
    "independent heads": stage_copy,
    "heads that read tokens": partial(stage_copy, reads_tokens=True),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("policy", [Chain(draw=Draw.GIVEN), BestFirst(beam=1)], ids=["chain", "best first"])
def test_a_copy_of_the_target_has_every_token_accepted(name: str, policy: Any) -> None:
    target = small()
    for request, wanted in zip(run(target, COPIES[name](target), policy), plain(target), strict=True):
        assert request.output == wanted
        stats = request.stats
        # Heads have no feature before a text's first round has ended: that one drafts nothing.
        first = 2 if "heads" in name else 1
        assert stats.rounds_all >= (LENGTH - first) // (DEPTH + 1) - 1 and stats.rounds_some == stats.rounds_none == 0
        assert stats.target_passes <= first + -(-(LENGTH - first) // (DEPTH + 1))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["feature head", "draft model"])
def test_a_copy_has_a_whole_path_of_its_tree_accepted(name: str) -> None:
    target = small()
    for request, wanted in zip(
        run(target, COPIES[name](target), BestFirst(beam=4), nodes=12), plain(target), strict=True
    ):
        assert request.output == wanted and request.stats.rounds_none == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [feature_copy, stage_copy], ids=["feature head", "heads"])
def test_a_copy_that_is_one_late_is_not_right(make: Any) -> None:
    """The twin: the same text, hardly a token accepted."""
    target = small()
    late = run(target, make(target, late=1), Chain(draw=Draw.GIVEN))
    assert [r.output for r in late] == plain(target)
    assert sum(r.stats.rounds_all for r in late) < sum(r.stats.rounds_some + r.stats.rounds_none for r in late)
