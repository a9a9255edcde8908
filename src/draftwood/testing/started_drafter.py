"""StartedDrafter: drafts with the target's own first layers and hands over their hidden states, so that the target pass runs
only the remaining layers."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import ForwardInput, LayerPlan, Needs, Span
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal, Started
from draftwood.core.protocols import Runner, TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.drafters.stateless import Stateless
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True)
class StartedDrafter(Stateless):
    """An early exit: the target's head on the hidden states after `layers` layers gives the distributions of children."""

    layers: int
    needs: Needs = Needs(borrow=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        assert rnd.target is not None
        run = _Run(rnd.target, rnd, self.layers)

        def step(tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
            node = frontier.clamp_min(0)
            hidden = run.upto(tree)
            logits = run.target.head(hidden.gather(1, node[..., None].expand(-1, -1, hidden.shape[-1])))
            probs = rnd.probs(logits, tree, node, ranked=policy.draw.ranked)
            return DraftProbs(probs.flatten(0, 1)), None

        proposal = grow(base, limit, policy, rnd, step)
        hidden = run.upto(proposal.tree)  # also the leaves, which have no children
        return replace(proposal, started=Started(self.layers, hidden, run.entries(proposal.tree)))


class _Run:
    """The first layers over a growing tree. On a host only live nodes are run, in adjacent entries. On an accelerator all
    nodes are run, each at the entry of its number, so that no shape depends on data."""

    def __init__(self, target: Runner, rnd: Round, layers: int) -> None:
        self.target, self.rnd, self.layers = target, rnd, layers
        self.done = [target.length(slot) for slot in rnd.host_slots]
        assert self.done == [length - 1 for length in rnd.host_lengths], "a token before the root is not in the cache"
        self._hidden: Tensor | None = None  # [B, nodes so far, H]

    def entries(self, tree: TokenTree) -> Int[Tensor, "B N"] | None:
        return tree.live.long().cumsum(1) - 1 if host.on_host(self.rnd.device) else None

    def upto(self, tree: TokenTree) -> Float[Tensor, "B N H"]:
        """Hidden states of all nodes; those that are new are run."""
        have = 0 if self._hidden is None else self._hidden.shape[1]
        new = tree.num_nodes - have
        if new:
            fresh = self._run(tree, have)
            self._hidden = fresh if self._hidden is None else torch.cat([self._hidden, fresh], dim=1)
        assert self._hidden is not None
        return self._hidden

    def _run(self, tree: TokenTree, first: int) -> Float[Tensor, "B new H"]:
        batch, nodes = tree.batch, tree.num_nodes
        index = torch.arange(nodes, device=tree.tokens.device).expand(batch, -1)
        entries = self.entries(tree)
        read = entries is not None
        entry = index if entries is None else entries
        above = tree.parents.clamp_min(0)
        behind = torch.where(index > 0, entry.gather(1, above), -1)
        at = tree.depths() + (self.rnd.lengths - 1)[:, None]
        slots = self.rnd.slots[:, None].expand(batch, nodes)
        columns = [x[:, first:].flatten() for x in (tree.tokens, slots, at, entry, behind)]
        new = nodes - first
        spans: tuple[Span, ...] = ()
        ride = torch.arange(batch * new, device=index.device)
        if read:
            ride = tree.live[:, first:].flatten().nonzero()[:, 0]
            columns = [x[ride] for x in columns]
        else:
            spans = tuple(
                Span(slot, b * new, (b + 1) * new, done, first, 1)
                for b, (slot, done) in enumerate(zip(self.rnd.host_slots, self.done, strict=True))
            )
        x = ForwardInput(*columns, want=ride[:0], spans=spans)
        hidden = self.target.execute(x, layers=LayerPlan(stop=self.layers)).hidden
        if read:
            hidden = hidden.new_zeros(batch * new, hidden.shape[-1]).index_copy(0, ride, hidden)
        return hidden.view(batch, new, -1).clone()
