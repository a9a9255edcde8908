"""One round's draft of a head on features: its passes, level by level, and the distributions they give."""

from dataclasses import replace
from itertools import accumulate
from math import log
from time import perf_counter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardInput, HostInput
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import Levels
from draftwood.drafters.nets.runner import FeatureModel
from draftwood.trees.grow import NO_NUMBERS


class Draft:
    """One round's draft in the making. Who hangs below whom is kept in lists: trees are small, and a tensor operation on a
    few numbers costs as much as one on thousands."""

    def __init__(
        self,
        model: FeatureModel,
        rnd: Round,
        chain: ForwardInput,
        known: list[KnownTokens | None],  # of each sequence the pairs that the first pass runs
        ranked: bool,
        temperature: list[float] | None,
        most: int,
        only: Int[Tensor, "W"] | None,
    ) -> None:
        self.model, self.rnd, self.chain = model, rnd, chain
        self.ranked, self.temperature, self.most, self.only = ranked, temperature, most, only
        self.slots: list[int] = rnd.host_slots
        # By sequence: node -> staged entry, place among `outputs`, position. The root's are those of the chain's last pair.
        self.run: list[dict[int, tuple[int, int, int]]] = [{} for _ in self.slots]
        self.last = [0] * len(self.slots)  # the last staged entry
        self.real = [b for b, each in enumerate(known) if each is not None]  # sequences that are drafted at all
        for place, b in enumerate(self.real):
            each = known[b]
            assert each is not None
            self.last[b] = len(each.tokens) - 1
            self.run[b][0] = (self.last[b], place, rnd.host_lengths[b] - 2)
        drafted = [each for each in known if each is not None]
        self.levels = None if hosts.on_host(rnd.device) else Levels(drafted, rnd.device)
        self.outputs: Tensor | None = None
        self.seconds = 0.0

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F d"] | None]:
        started = perf_counter()
        if self.outputs is None:
            a, found = self.model.execute(self.chain, self.only)
            self.outputs = a.index_select(0, self.chain.want)
            real = self.real
        elif self.levels is not None:
            found, real = self._level_unread(self.levels, tree, frontier)
        else:
            found, real = self._level(tree, frontier)
        self.seconds += perf_counter() - started
        return self._distributions(found, real, tree, frontier), None

    def _level(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[Float[Tensor, "U W"], list[int]]:
        """One pass over the frontier, each node behind the staged entry of its parent and reading its parent's output; the
        logits of its real nodes, and their places in it."""
        assert self.outputs is not None
        tokens, parents = host(tree.tokens), host(tree.parents)
        host_input = HostInput([], [], [], [])
        positions: list[int] = []
        above: list[int] = []
        real: list[int] = []
        first, width = len(self.outputs), frontier.shape[1]
        for b, (slot, run, nodes) in enumerate(zip(self.slots, self.run, host(frontier), strict=True)):
            for f, at in enumerate(nodes):
                if at < 0 or parents[b][at] not in run:
                    continue
                behind, place, position = run[parents[b][at]]
                self.last[b] += 1
                run[at] = (self.last[b], first + len(real), position + 1)
                host_input.ids.append(tokens[b][at])
                host_input.slots.append(slot)
                host_input.entries.append(self.last[b])
                host_input.parents.append(behind)
                positions.append(position + 1)
                above.append(place)
                real.append(b * width + f)
        device = self.outputs.device
        hidden = self.outputs.index_select(0, put(above, device))
        x = ForwardInput.of(host_input, positions, list(range(len(real))), device, hidden)
        a, found = self.model.execute(x, self.only)
        self.outputs = torch.cat([self.outputs, a])
        return found, real

    def _level_unread(
        self, levels: Levels, tree: TokenTree, frontier: Int[Tensor, "B F"]
    ) -> tuple[Float[Tensor, "U W"], list[int]]:
        """The same without looking at the tree: a pass over every place of the frontier of the drafted sequences."""
        assert self.outputs is not None
        batch, width = frontier.shape
        if len(self.real) < batch:
            some = put(self.real, frontier.device)
            tree, frontier = tree.take(some), frontier[some]
        x, above = levels.step(tree, frontier)
        x = replace(x, hidden=self.outputs.index_select(0, above.flatten()))
        a, found = self.model.execute(x, self.only)
        self.outputs = torch.cat([self.outputs, a])
        return found, [b * width + f for b in self.real for f in range(width)]

    def _distributions(
        self, found: Float[Tensor, "U W"], real: list[int], tree: TokenTree, frontier: Int[Tensor, "B F"]
    ) -> DraftProbs:
        """Child distributions of the whole frontier. Nodes that were not run get zeros, and so no children."""
        batch, width = frontier.shape
        ids = self.model.ids if self.only is None else self.only
        if self.temperature is not None:
            temperature = [self.temperature[place // width] for place in real]
            prob, tokens = self.model.ranked(found, temperature, min(self.most, found.shape[1]), self.only)
            return DraftProbs(_among(prob, real, batch * width), _among(tokens, real, batch * width))
        logits = _among(found, real, batch * width).view(batch, width, -1)
        probs = self.rnd.probs(logits, tree, frontier.clamp_min(0), ids, ranked=self.ranked).flatten(0, 1)
        if len(real) < batch * width:
            probs = _among(probs[put(real, probs.device)], real, batch * width)
        return DraftProbs(probs, ids)


def _among(x: Tensor, places: list[int], count: int) -> Tensor:
    """Rows of x at their places among `count` rows, zeros elsewhere."""
    if len(places) == count:
        return x
    return x.new_zeros(count, x.shape[1]).index_copy(0, put(places, x.device), x)


def in_one_call(
    model: FeatureModel,
    base: Proposal,
    limit: Limit,
    chain: ForwardInput,
    temperature: float,
    only: Int[Tensor, "W"] | None,
) -> Proposal | None:
    """One text's chain of best tokens in a single call of its model: step by step, each call would cost as much as its step.
    It is the tree that the growing loop would grow, node by node: given tokens, each scored by the product of probabilities.
    None where the model cannot, or the base is more than a root: then the loop does it."""
    steps = min(limit.depths[0], limit.budgets[0])
    if steps < 1 or base.tree.num_nodes > 1:
        return None
    started = perf_counter()
    found = model.line(chain, temperature, steps, only, limit.least)
    if found is None:
        return None
    tokens, prob = found
    real = next((i for i, p in enumerate(prob) if not p > 0), steps)  # nothing follows what is no probability
    fault = NO_NUMBERS if any(p != p for p in prob) else base.fault
    score = list(accumulate((log(p) for p in prob[:real]), initial=float(base.tree.score[0, 0])))[1:]
    device, kind = base.tree.tokens.device, base.tree.score.dtype
    tree = base.tree
    if real:
        scores = put([score], device, kind)
        tree = tree.append(
            tokens=put([tokens[:real]], device), parents=put([[*range(real)]], device), live=scores <= 0, score=scores
        )
    return replace(
        base,
        tree=tree,
        draw=Draw.GIVEN,
        q_index=put([[-1] * tree.num_nodes], device),
        passes=base.passes + (real if limit.least else steps),
        pass_seconds=perf_counter() - started,
        fault=fault,
    )


def unread_lines(
    model: FeatureModel, base: Proposal, limit: Limit, chain: ForwardInput, only: Int[Tensor, "W"] | None
) -> Proposal | None:
    """The same for all texts of a batch, where nobody looks at the tokens. None where the model cannot."""
    steps = min(limit.tier.depth, limit.tier.nodes - 1)
    if steps < 1 or base.tree.num_nodes > 1:
        return None
    started = perf_counter()
    found = model.lines(chain, steps, only)
    if found is None:
        return None
    tokens, prob = found
    index = torch.arange(steps, device=tokens.device)
    most = torch.minimum(limit.depth, limit.nodes)[:, None]
    score = base.tree.score + prob.log().cumsum(1).to(base.tree.score.dtype)
    tree = base.tree.append(
        tokens=tokens, parents=index.expand_as(tokens), live=(score <= 0) & (index < most), score=score
    )
    return replace(
        base,
        tree=tree,
        draw=Draw.GIVEN,
        q_index=torch.full_like(tree.tokens, -1),
        passes=base.passes + steps,
        pass_seconds=perf_counter() - started,
        max_depth=steps,
        max_children=1,
    )
