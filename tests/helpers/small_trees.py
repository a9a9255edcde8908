"""Trees over three or four tokens: every one that a policy can draw, what the engine emits with them, and spoiled ones."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import Always, toy_round
from draftwood.testing.exact import Forking, Leaf, _Branch, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free
from draftwood.verifiers.rejection import Rejection

P, Q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)  # fixture A
D = (0.6, 0.3, 0.1)  # fixture D
Change = Callable[[Proposal], Proposal]


@dataclass(frozen=True)
class Spoiled(TableDrafter):
    """A drafter whose proposal is changed behind the rule's back."""

    change: Change | None = None

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = TableDrafter.propose(self, state, rnd, base, limit, policy)
        return made if self.change is None else self.change(made)


class Likely:
    """Noise that always picks the most probable column, the first among equals."""

    def coin(self, key: torch.Tensor, prob: torch.Tensor, where: torch.Tensor, who: Sequence[int]) -> torch.Tensor:
        return where & (prob > 0.5)

    def pick(
        self,
        key: torch.Tensor,
        probs: torch.Tensor | TokenProbs,
        where: torch.Tensor,
        who: Sequence[int],
    ) -> torch.Tensor:
        probs = probs.dense() if isinstance(probs, TokenProbs) else probs
        best, column = probs.max(-1)
        return torch.where(where & (best > 0), column, -1)

    def uniforms(self, key: torch.Tensor) -> None:
        return None


def one_round(
    policy: Any,
    depth: int,
    nodes: int,
    p: Conditional | None = None,
    q: Conditional | None = None,
    *,
    vocab_size: int = 4,
    verifier: Any = None,
    change: Change | None = None,
) -> list[Leaf]:
    """All outcomes of one round of the engine; on fixture A unless other distributions are given."""
    target, draft = p or context_free(P), Spoiled(q or context_free(Q), change=change)
    rule = Rejection() if verifier is None else verifier
    return leaves(
        TableModel(vocab_size, target),
        lambda: Recipe(drafter=draft, policy=policy, verifier=rule, controller=Always(depth, nodes)),
    )


def grown(
    policy: Any, probs: Conditional, vocab_size: int, limit: Limit, *, noise: Any = None, seed: int = 0
) -> Proposal:
    """One draft below token 0 in every row."""
    rnd = toy_round([[0]] * len(limit.depth), vocab_size, seed=seed)
    rnd.noise = noise or rnd.noise
    return TableDrafter(probs).propose(None, rnd, Proposal.roots(rnd.roots()), limit, policy)


def paths(tree: TokenTree, mask: torch.Tensor | None = None, row: int = 0) -> tuple[tuple[int, ...], ...]:
    """The tokens on the way to every live node, by number."""
    on = tree.live if mask is None else mask
    whole = tree.path_tokens(torch.arange(tree.num_nodes).expand(tree.batch, -1))[row].tolist()
    return tuple(tuple(t for t in path if t >= 0) for path, kept in zip(whole, on[row].tolist(), strict=True) if kept)[
        1:
    ]


def every_tree(
    policy: Any, probs: Conditional, vocab_size: int, depth: int, nodes: int
) -> dict[tuple[tuple[int, ...], ...], float]:
    """All trees that a policy can draw and keep below token 0, with their probabilities."""
    found: dict[tuple[tuple[int, ...], ...], float] = defaultdict(float)
    scripts: list[list[int]] = [[]]
    while scripts:
        part, scripts = scripts[-256:], scripts[:-256]
        branches = {i: _Branch(script) for i, script in enumerate(part)}
        limit = Limit.of([depth] * len(part), [nodes] * len(part))
        tree = grown(policy, probs, vocab_size, limit, noise=Forking(branches)).tree
        kept = policy.select(tree, limit)
        for b, branch in branches.items():
            found[paths(tree, kept, b)] += branch.prob
            scripts += branch.others
    return dict(found)


def reversed_siblings(x: Proposal) -> Proposal:
    """Two siblings below the root, the second one first."""
    tokens = x.tree.tokens.clone()
    tokens[:, [1, 2]] = tokens[:, [2, 1]]
    return replace(x, tree=replace(x.tree, tokens=tokens))


def confident_first(x: Proposal) -> Proposal:
    """Two siblings below the root, the one that the draft believes in more first."""
    q = torch.tensor(Q)[x.tree.tokens]
    tokens = torch.where((q[:, 1] < q[:, 2])[:, None], x.tree.tokens[:, [0, 2, 1]], x.tree.tokens)
    return replace(x, tree=replace(x.tree, tokens=tokens))


def most_confident(x: Proposal) -> Proposal:
    """Of two siblings below the root only the one that the draft believes in more."""
    best = torch.tensor(Q)[x.tree.tokens[:, 1:]].argmax(1)
    return x.keep(torch.stack([torch.ones_like(best).bool(), best == 0, best == 1], dim=1))
