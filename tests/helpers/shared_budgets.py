"""Two requests that share one budget of drafted nodes: every outcome of both together."""

from collections import defaultdict
from itertools import product
from typing import Any

import torch

from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.tree import TokenTree
from draftwood.engine.engine import Engine
from draftwood.testing.exact import Forking, Free, _Branch
from draftwood.testing.parts.table_model import TableModel, joint

SCORES = [[0.0, -1.0, -2.0, -3.0], [0.0, -1.0, -1.5, -3.0], [0.0, -1.0, -9.0, -9.0]]


def chains(scores: list[list[float]] = SCORES) -> TokenTree:
    tree = TokenTree.roots(torch.arange(len(scores)))
    for i in range(1, len(scores[0])):
        at = torch.full((len(scores), 1), i - 1)
        column = torch.tensor([[own[i]] for own in scores])
        tree = tree.add(at, at, live=torch.ones_like(at).bool(), score=column)
    return tree


def texts_of_both(recipe: Recipe, p: Any, vocab_size: int) -> dict[Any, float]:
    """The texts of two requests after one round, with their joint probabilities."""
    target = TableModel(vocab_size, p)
    scripts: list[list[int]] = [[]]
    found: dict[Any, float] = defaultdict(float)
    while scripts:
        branch = _Branch(scripts.pop())
        config, noise = EngineConfig(max_num_seqs=2, disable_slow_drafts=False), Forking({0: branch, 1: branch})
        engine = Engine(target.runner(2), recipe, cost_model=Free(), config=config, noise=noise)
        requests = [
            Request(i, [i], SamplingParams(temperature=1.0, seed=i, max_tokens=9), vocab_size) for i in range(2)
        ]
        for request in requests:
            engine.add(request)
        engine.step()
        assert all(request.stats.disabled is None for request in requests), requests[0].stats.disabled
        found[tuple(tuple(request.output) for request in requests)] += branch.prob
        scripts += branch.others
    return found


def error_of_both(found: dict[Any, float], p: Any, vocab_size: int, length: int) -> float:
    """Largest |got - p p| over all pairs of texts of `length` tokens."""
    worst = 0.0
    for texts in product(product(range(vocab_size), repeat=length), repeat=2):
        got = want = 0.0
        for outputs, prob in found.items():
            part = prob
            for i, (text, out) in enumerate(zip(texts, outputs, strict=True)):
                same = out[:length] == text[: len(out)]
                part *= joint(p, (i, *out[:length]), text[len(out) :]) if same else 0.0
            got += part
        want = joint(p, (0,), texts[0]) * joint(p, (1,), texts[1])
        worst = max(worst, abs(got - want))
    return worst
