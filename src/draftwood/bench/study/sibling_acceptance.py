"""profile: how often the first, second, third .. sibling is the accepted one, level by level, in real answers.

A tree of a fixed shape is made for one profile of acceptance. To measure it, a wide tree is drafted and verified. At every
node on the accepted path each child counts as tried and the accepted one as kept. The shape is fixed before anything is
drawn, so the counts are unbiased.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood import recipes
from draftwood.bench.study.single_prompt import ask, engine, need_prompts
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legality import RULES, Shape
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.trees.profile import positional
from draftwood.trees.shaped import Shaped
from draftwood.verifiers.rejection import Rejection

SPARE = 256  # cache entries of a slot beyond prompt and answer: these trees are large
FIRST, SECOND = 0.6, 0.2  # acceptance for which the measured tree is shaped; halved with every further sibling

Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SiblingCounts:
    """Counts by depth of the parent and by sibling."""

    tried: list[list[int]]
    kept: list[list[int]]

    def rate(self, depth: int, sibling: int) -> float | None:
        tried = self.tried[depth][sibling]
        return self.kept[depth][sibling] / tried if tried else None

    def acceptance(self) -> tuple[float, ...]:
        """Over all depths, non-increasing: where a later sibling has a higher rate by chance, both get their pooled rate.
        Siblings that were never accepted are left out. The sum is at most 1."""
        pools: list[list[int]] = []  # kept, tried, siblings
        for sibling in range(len(self.tried[0])):
            pools.append([sum(level[sibling] for level in self.kept), sum(level[sibling] for level in self.tried), 1])
            while len(pools) > 1 and pools[-1][0] * pools[-2][1] > pools[-2][0] * pools[-1][1]:
                last = pools.pop()
                pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
        rates = [kept / tried for kept, tried, count in pools for _ in range(count) if kept]
        return tuple(rate / max(sum(rates), 1.0) for rate in rates)


@dataclass(slots=True)
class Counting:
    """Rejection that counts which sibling it accepts."""

    width: int
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes
    tried: list[list[int]] = field(default_factory=list[list[int]])
    kept: list[list[int]] = field(default_factory=list[list[int]])

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        verdict = Rejection().verify(proposal, target, rnd)
        last = torch.nn.functional.pad(verdict.path, (0, 1), value=-1)
        for depth, (node, then) in enumerate(zip(last.unbind(1), last.unbind(1)[1:], strict=False)):
            self._count(depth, node, then, proposal)
        return verdict

    def _count(self, depth: int, node: Tensor, then: Tensor, proposal: Proposal) -> None:
        children = proposal.tree.children(node.clamp_min(0)) & (node >= 0)[:, None]  # [B, N]
        offered = children.sum(1).tolist()
        place = (children & (torch.arange(children.shape[1]) < then[:, None])).sum(1).tolist()
        while len(self.tried) <= depth:
            self.tried.append([0] * self.width)
            self.kept.append([0] * self.width)
        for count, at, goes_on in zip(offered, place, (then >= 0).tolist(), strict=True):
            for sibling in range(count):
                self.tried[depth][sibling] += 1
            if goes_on:
                self.kept[depth][at] += 1


def measure(
    loaded: Loaded,
    recipe: str | Recipe,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    width: int = 6,
    depth: int = 8,
    nodes: int = 48,
    max_tokens: int = 64,
    seed: int = 0,
    say: Say = lambda done, total: None,
) -> SiblingCounts:
    """One answer to each prompt, with the recipe's drafter."""
    need_prompts(prompts)
    drafter = recipes.drafter(recipe, loaded.model) if isinstance(recipe, str) else recipe.drafter
    if Draw.DISTINCT not in drafter.draws:
        raise OptionError(
            f"{type(drafter).__name__} cannot draw different siblings\nhint: eagle3, fast_draft, medusa, ..."
        )
    tree = Shaped(positional([FIRST, *(SECOND / 2**i for i in range(width - 1))], nodes, depth))
    counter = Counting(max(tree.parents.count(p) for p in set(tree.parents)))
    for i, prompt in enumerate(prompts):
        say(i, len(prompts))
        size = Fixed(depth=tree.depth, nodes=tree.num_nodes)
        whole = Recipe(drafter=drafter, policy=tree, verifier=counter, controller=size)
        params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed + i, max_tokens=max_tokens)
        ask(engine(loaded, whole, [prompt], max_tokens, SPARE), prompt, params, i + 1)
    say(len(prompts), len(prompts))
    if not any(map(any, counter.kept)):
        raise OptionError("nothing was accepted\nhint: longer answers, or a drafter with a higher acceptance")
    return SiblingCounts(counter.tried, counter.kept)
