"""One round's draft of a head on features: its passes, level by level, and the distributions they give."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan, log
from time import perf_counter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ForwardInput
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree
from draftwood.drafters.levels import Level, levels_of, rows_at
from draftwood.drafters.nets.runners.runner import FeatureModel
from draftwood.drafters.retrieval.retrieved import Listed, Retrieved, as_given
from draftwood.trees.grow import NO_NUMBERS

Reads = Callable[[Level, TokenTree, Int[Tensor, "B F"]], Float[Tensor, "T d"]]


class Draft:
    """One round's draft in the making. `known`: of each sequence the pairs that the first pass runs; `reads`: what the nodes
    of a level read beside their tokens, by default what the model put out for their parents."""

    def __init__(
        self,
        model: FeatureModel,
        rnd: Round,
        chain: ForwardInput,
        known: Sequence[KnownTokens | None],
        ranked: bool,
        temperature: list[float] | None,
        most: int,
        only: Int[Tensor, "W"] | None,
        reads: Reads | None = None,
    ) -> None:
        self.reads = reads
        self.model, self.rnd, self.chain = model, rnd, chain
        self.ranked, self.temperature, self.most, self.only = ranked, temperature, most, only
        self.drafted = [b for b, each in enumerate(known) if each is not None]
        self.levels = levels_of(known, rnd.device)
        self.outputs: Tensor | None = None  # what each node that was run leaves for its children
        self.seconds = 0.0

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F d"] | None]:
        started = perf_counter()
        if self.outputs is None:
            places = self.drafted
            a, found = self.model.execute(self.chain, self.only)
            self.outputs = a.index_select(0, self.chain.want)
        else:
            level = self.levels.step(tree, frontier)
            places = level.places
            own = self.outputs.index_select(0, level.above) if self.reads is None else self.reads(level, tree, frontier)
            x = level.x.starting_from(own)
            a, found = self.model.execute(x, self.only)
            self.outputs = torch.cat([self.outputs, a])
        self.seconds += perf_counter() - started
        return self._distributions(found, places, tree, frontier), None

    def _distributions(
        self, found: Float[Tensor, "U W"], places: list[int], tree: TokenTree, frontier: Int[Tensor, "B F"]
    ) -> DraftProbs:
        """Child distributions of the whole frontier. Nodes that were not run get zeros, and so no children."""
        (batch, width), count = frontier.shape, frontier.numel()
        ids = self.model.ids if self.only is None else self.only
        if self.temperature is not None:
            temperature = [self.temperature[place // width] for place in places]
            prob, tokens = self.model.ranked(found, temperature, min(self.most, found.shape[1]), self.only)
            return DraftProbs(rows_at(prob, places, count), rows_at(tokens, places, count))
        # Where the softmax is all, it has the bits that the model draws a whole chain from, alone or beside others.
        divisors = self.rnd.softmax_temperatures()
        whole = [i for i, place in enumerate(places) if divisors[place // width] is not None]
        shares = (
            self.model.shares(
                found[whole] if len(whole) < len(places) else found,
                [t for i in whole if (t := divisors[places[i] // width]) is not None],
            )
            if whole
            else None
        )
        if shares is not None and len(whole) == len(places):
            return DraftProbs(rows_at(shares, places, count), ids)
        logits = rows_at(found, places, count).view(batch, width, -1)
        probs = self.rnd.probs(logits, tree, frontier.clamp_min(0), ids, ranked=self.ranked).flatten(0, 1)
        if shares is not None:
            probs = probs.index_copy(0, put([places[i] for i in whole], probs.device), shares.to(probs.dtype))
        if len(places) < count:
            probs = rows_at(probs[put(places, probs.device)], places, count)
        return DraftProbs(probs, ids)


def chain_in_one_call(
    model: FeatureModel,
    base: Proposal,
    limit: Limit,
    chain: ForwardInput,
    temperature: list[float],
    only: Int[Tensor, "W"] | None,
    k: int = 1,
) -> Proposal | None:
    """The chain of best tokens of every sequence, and beside each of them the `k` - 1 next best, in a single call of the
    model: step by step, each call would cost as much as its step. It is the tree that the growing loop would grow, node by
    node: given tokens, each scored by the product of probabilities. None where the model cannot, or the base is more than a
    root: then the loop does it."""
    steps = min(limit.tier.depth, limit.tier.nodes - 1)
    if steps < 1 or base.tree.num_nodes > 1:
        return None
    if hosts.on_host(base.tree.tokens.device):
        listed = listed_chain(model, base, limit, chain, temperature, only, k)
        return None if listed is None else _from_lists(base, listed, k)
    started = perf_counter()
    found = model.best_chains(chain, temperature, steps, only, limit.least, k)
    if found is None:
        return None
    seconds = perf_counter() - started
    tokens, prob = found
    k = tokens.shape[-1]
    path = prob[..., 0].log().cumsum(1)  # [B, steps]
    above = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1]], dim=1)
    score = base.tree.score + (above[..., None] + prob.log()).flatten(1).to(base.tree.score.dtype)
    level = torch.arange(steps * k, device=tokens.device) // k
    live = score > -torch.inf  # nothing follows a NaN or a zero
    if min(limit.shallowest, *limit.budgets) < steps:
        live = live & (level < torch.minimum(limit.depth, limit.nodes)[:, None])
    parents = torch.where(level > 0, (level - 1) * k + 1, 0)
    tree = base.tree.append(tokens=tokens.flatten(1), parents=parents.expand_as(score), live=live, score=score)
    grown = replace(base, tree=tree, q_index=torch.full_like(tree.tokens, -1))
    return _with_costs(grown, steps, k, seconds)


def drawn_in_one_call(
    model: FeatureModel,
    base: Proposal,
    limit: Limit,
    chain: ForwardInput,
    rnd: Round,
    only: Int[Tensor, "W"] | None,
) -> Proposal | None:
    """One sequence's chain of independent draws in a single call of the model: the one that the growing loop would draw,
    under the same keys. None where the model cannot, or the distributions need more than a softmax."""
    steps, (temperature, *others) = min(limit.tier.depth, limit.tier.nodes - 1), rnd.softmax_temperatures()
    if others or temperature is None or steps < 1 or base.tree.num_nodes > 1 or not hosts.on_host(rnd.device):
        return None
    steps = min(steps, limit.shallowest, *limit.budgets)
    nodes = torch.arange(steps)[None]  # node i draws node i + 1
    uniforms = rnd.noise.uniforms(rnd.key("draft", nodes)[0]) if steps else None
    if uniforms is None:
        return None
    started = perf_counter()
    found = model.drawn_chain(chain, temperature, uniforms, only)
    if found is None:
        return None
    seconds = perf_counter() - started
    tokens, q = found
    score = base.tree.score - (nodes + 1).to(base.tree.score.dtype)
    tree = base.tree.append(
        tokens=tokens[None],
        parents=nodes,
        live=torch.ones_like(nodes, dtype=torch.bool),
        score=score,
        copies=torch.ones_like(nodes),
    )
    index = torch.nn.functional.pad(nodes, (0, 1), value=-1)
    whole = DraftProbs(q, model.ids if only is None else only)
    return replace(
        base, tree=tree, draw=Draw.IID, q=whole, q_index=index, passes=base.passes + steps, pass_seconds=seconds,
        max_depth=steps, max_children=1,
    )  # fmt: skip


def listed_chain(
    model: FeatureModel,
    base: Proposal,
    limit: Limit,
    chain: ForwardInput,
    temperature: list[float],
    only: Int[Tensor, "W"] | None,
    k: int = 1,
) -> Listed | None:
    """The same as lists, on the host, where a few numbers are faster so."""
    steps = min(limit.tier.depth, limit.tier.nodes - 1)
    if steps < 1 or base.tree.num_nodes > 1:
        return None
    started = perf_counter()
    best = model.best_chains(chain, temperature, steps, only, limit.least, k)
    if best is None:
        return None
    seconds = perf_counter() - started
    tokens: list[list[list[int]]] = hosts.host(best[0])
    prob: list[list[list[float]]] = hosts.host(best[1])
    found: list[Retrieved] = []
    ran, broken = 1, False
    for words, shares, depth, nodes in zip(tokens, prob, limit.depths, limit.budgets, strict=True):
        ids: list[int] = []
        parents: list[int] = []
        score: list[float] = []
        at, path = 0, 0.0
        for level, (some, chances) in enumerate(zip(words, shares, strict=True)):
            broken = broken or isnan(chances[0])
            if not chances[0] > 0:  # nothing follows a NaN or a zero
                break
            ran = max(ran, level + 1)
            if level == min(depth, nodes):
                break
            first = len(ids) + 1
            for token, chance in zip(some, chances, strict=True):
                if chance > 0:
                    ids.append(token)
                    parents.append(at)
                    score.append(path + log(chance))
            at, path = first, score[first - 1]
        found.append(Retrieved(ids, parents, score))
    return Listed(found, ran, seconds, NO_NUMBERS if broken else base.fault)


def _from_lists(base: Proposal, listed: Listed, k: int) -> Proposal:
    return replace(_with_costs(as_given(base, listed.found), listed.passes, k, listed.seconds), fault=listed.fault)


def _with_costs(grown: Proposal, steps: int, k: int, seconds: float) -> Proposal:
    passes = grown.passes + steps
    return replace(grown, draw=Draw.GIVEN, passes=passes, pass_seconds=seconds, max_depth=steps, max_children=k)
