"""All outcomes of rounds under a rule, and drafters that grow in ways a rule must survive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, near, random_probs
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static


def sizes(policy: Any, depth: int) -> tuple[int, int]:
    """Depth and nodes that hold the whole tree."""
    if isinstance(policy, Static):
        return len(policy.widths), policy.num_nodes
    return depth, depth * (policy.count if isinstance(policy, Paths) else 1)


def outcomes(
    verifier: Any,
    policy: Any,
    p: Conditional,
    q: Conditional | Any,
    vocab_size: int,
    depth: int = 2,
    controller: Any = None,
    **more: Any,
) -> list[Leaf]:
    """Of one round, or of whole requests if `tokens` is given. `q`: a distribution, or a drafter."""
    drafter: Any = q if hasattr(q, "propose") else TableDrafter(q)
    size = controller or Always(*sizes(policy, depth))
    return leaves(
        TableModel(vocab_size, p),
        lambda: Recipe(drafter=drafter, policy=policy, verifier=verifier, controller=size),
        **more,
    )


def pair(vocab_size: int, seed: int, mix: float = 0.6) -> tuple[Conditional, Conditional]:
    """A random target and a draft of it."""
    p = random_probs(vocab_size, seed)
    return p, near(p, vocab_size, seed + 100, mix)


class Wayward(Always):
    """Whether a node gets children depends on all that was drawn so far, in every branch."""

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        def proceed(tree: TokenTree, frontier: torch.Tensor, above: Any, own: torch.Tensor) -> torch.Tensor:
            total = (tree.tokens * tree.live)[:, 1:].sum(1, keepdim=True)
            return (tree.num_nodes == 1) | ((total + tree.tokens.gather(1, frontier.clamp_min(0))) % 3 != 1)

        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, proceed=proceed)


@dataclass(frozen=True)
class Failing(TableDrafter):
    """Breaks below texts that end with `bad`: by a distribution that is none, or by raising, which ends every path."""

    bad: int = 2
    raises: bool = False

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        def probs(text: tuple[int, ...]) -> Sequence[float]:
            if len(text) > 1 and text[-1] == self.bad:
                if self.raises:
                    raise RuntimeError("broken")
                return [float("nan")] * len(self.probs(text))
            return self.probs(text)

        return TableDrafter(probs).propose(state, rnd, base, limit, policy)


@dataclass(frozen=True)
class WithGiven(TableDrafter):
    """Beside and below what is drawn, given tokens; and below those of the root, drawn ones again.

    root ── drawn ... ── last drawn ── every token, given
       └─── other tokens, given ── one draw each
    """

    vocab_size: int = 3

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        made = TableDrafter.propose(self, state, rnd, base, limit, policy)
        tree, rows, v = made.tree, made.q_indices(), self.vocab_size
        tokens = torch.arange(v).expand(rnd.batch, -1)
        there = (tree.parents[:, None] == 0) & tree.live[:, None] & (tree.tokens[:, None] == tokens[..., None])
        last = torch.where(tree.live, torch.arange(tree.num_nodes), 0).amax(1, keepdim=True).expand(-1, v)
        first = tree.num_nodes
        grown = tree.add(torch.zeros_like(tokens), tokens, live=~there.any(-1), copies=0)
        grown = grown.add(last, tokens, live=(last > 0), copies=0)
        given = torch.arange(first, first + v).expand(rnd.batch, -1)
        probs = torch.tensor(
            [[self.probs((*r.known, t)) for t in range(v)] for r in rnd.requests], dtype=torch.float64
        )  # [B, v, V]
        alive = grown.live.gather(1, given)
        drawn = rnd.draw(given, probs, 1, policy.draw, alive)[..., 0]
        assert made.q is not None
        q = made.q.join(DraftProbs(probs.flatten(0, 1)))
        own = made.q.num_distributions + torch.arange(rnd.batch * v).view(rnd.batch, v)
        whole = grown.add(given, drawn, live=alive, copies=1)
        rows = torch.nn.functional.pad(rows, (0, whole.num_nodes - first), value=-1)
        rows[:, first : first + v] = torch.where(alive, own, -1)
        return Proposal(whole, made.draw, q, rows)
