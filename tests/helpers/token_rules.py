"""Shared by tests of rules for several draws: one round on known distributions, the best any rule could do, real runs."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.engine import Engine
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Free, Leaf, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def recipe_of(verifier: Any, policy: Any, q: Conditional, depth: int = 1, nodes: int = 100) -> Callable[[], Recipe]:
    return lambda: Recipe(drafter=TableDrafter(q), policy=policy, verifier=verifier, controller=Always(depth, nodes))


def one_round(verifier: Any, policy: Any, p: Sequence[float] = P, q: Sequence[float] = Q) -> list[Leaf]:
    """All outcomes of one round of one level, on a pair of distributions that no text changes."""
    return leaves(TableModel(len(p), context_free(p)), recipe_of(verifier, policy, context_free(q)))


def optimum(p: Sequence[float], q: Sequence[float], k: int) -> float:
    """The best acceptance of k independent draws: 1 + min over all sets H of p(H) - q(H)^k."""
    tokens = range(len(p))
    sets = (h for size in range(len(p) + 1) for h in combinations(tokens, size))
    return 1 + min(sum(p[i] for i in h) - sum(q[i] for i in h) ** k for h in sets)


def distributions(vocab_size: int) -> st.SearchStrategy[list[float]]:
    """Any distribution of so many tokens, those with zeros among them."""
    weights = st.lists(st.integers(0, 12), min_size=vocab_size, max_size=vocab_size).filter(any)
    return weights.map(lambda w: [x / sum(w) for x in w])


def texts(
    target: TableModel,
    recipe: Callable[[], Recipe],
    requests: Sequence[tuple[list[int], int, float]],
    top_p: float = 1.0,
) -> Any:
    """What (prompt, tokens, temperature) requests get when they run together, each with a seed by its place."""
    return [r.output for r in _served(target, recipe(), list(enumerate(requests)), top_p)]


def texts_alone(
    target: TableModel, recipe: Callable[[], Recipe], requests: Sequence[tuple[list[int], int, float]]
) -> Any:
    """The same, each in an engine of its own."""
    return [_served(target, recipe(), [each])[0].output for each in enumerate(requests)]


def _served(
    target: TableModel, recipe: Recipe, asked: list[tuple[int, tuple[list[int], int, float]]], top_p: float = 1.0
) -> list[Request]:
    engine = Engine(
        target.runner(len(asked), 128),
        recipe,
        cost_model=Free(),
        config=EngineConfig(max_num_seqs=len(asked)),
    )
    made = [
        Request(
            i,
            prompt,
            SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=tokens),
            target.vocab_size,
        )
        for i, (seed, (prompt, tokens, temperature)) in enumerate(asked)
    ]
    for request in made:
        engine.add(request)
    while engine.has_work:
        engine.step()
    assert all(request.stats.disabled is None for request in made)
    return made
