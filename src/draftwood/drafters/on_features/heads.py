"""Heads: several guesses from one feature, that of the position which produced the root (Medusa, Hydra, MLP speculator).

No cache and no history: a text whose last round is not the feature's, as before its first one, gets no guess.

    known   x0 x1 x2      root x2, produced by the feature f1
    stage 0 reads f1 and x2 and guesses x3; stage 1 reads what stage 0 left and the guess, and so on
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import FINAL, ForwardOutput, Needs
from draftwood.core.host import put
from draftwood.core.last_rounds import LastRounds, forget, just_ran, note
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.drafters.nets.runners.heads_model import StageModel
from draftwood.trees.grow import grow


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """`model` runs the heads. Nodes deeper than its stages get no children."""

    model: StageModel
    needs: Needs = Needs(origin=frozenset({FINAL}), trims=True)
    draws: frozenset[Draw] = frozenset(Draw)

    def init(self, slots: int) -> LastRounds:
        return {}

    def admit(self, state: LastRounds, slot: int, request: Request) -> int:
        forget(state, [slot])
        return request.num_known

    def begin(self, state: LastRounds, rnd: Round, output: ForwardOutput) -> None:
        return None

    def propose(self, state: LastRounds, rnd: Round, base: Proposal, limit: Limit, policy: TreePolicy) -> Proposal:
        fresh = just_ran(state, rnd)
        columns = rnd.columns if self.model.ids is None else rnd.trimmed(self.model.ids).columns
        if not any(fresh) or (columns is not None and not len(columns)):
            return base
        levels = put([self.model.stages if on else 0 for on in fresh], rnd.device)
        start = self.model.start(rnd.origin[FINAL])
        draft = StageDraft(self.model, rnd, start, levels, columns, policy.draw.ranked)
        proposal = grow(base, limit, policy, rnd, draft.step)
        return replace(proposal, pass_seconds=draft.seconds)

    def commit(self, state: LastRounds, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        note(state, rnd, outcome)

    def free(self, state: LastRounds, slots: Sequence[int]) -> None:
        forget(state, slots)


class Stages(Protocol):
    """Stages behind one another, as in `StageModel`. `reads_tokens` False: the nodes of a level have the same logits."""

    stages: int
    reads_tokens: bool

    def step(
        self, index: int, carry: Float[Tensor, "n *C"], tokens: Int[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n *C"], Float[Tensor, "n H"]]: ...
    def outputs(self, start: Float[Tensor, "n *C"], roots: Int[Tensor, "n"]) -> Float[Tensor, "n stages H"]:
        """What the head rows multiply, of all stages, where none reads a drafted token."""
        ...

    def logits(
        self, y: Float[Tensor, "*S H"], columns: Int[Tensor, "W"] | None, stage: Int[Tensor, "*S"] | None = None
    ) -> Float[Tensor, "*S W"]: ...


class StageDraft:
    """One round's draft in the making: what each node that was run left for its children. `start`: what the first stage
    reads of each sequence. `levels`: how many stages of each sequence may draft."""

    def __init__(
        self,
        model: Stages,
        rnd: Round,
        start: Float[Tensor, "B *C"],
        levels: Int[Tensor, "B"],
        columns: Int[Tensor, "W"] | None,
        ranked: bool,
    ) -> None:
        self.model, self.rnd, self.start, self.levels, self.columns, self.ranked = (
            model, rnd, start, levels, columns, ranked,
        )  # fmt: skip
        self.carries: dict[int, Tensor] = {}  # by depth
        self.place = torch.zeros_like(rnd.lengths)[:, None]  # of a node's carry among those of its depth
        self.level_distributions: Tensor | None = None  # [B, stages, W]
        self.seconds = 0.0

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[DraftProbs, Float[Tensor, "B F H"] | None]:
        started = perf_counter()
        depth = tree.depths().gather(1, frontier.clamp_min(0))
        has_stage = (frontier >= 0) & (depth < self.levels[:, None])
        probs = (self._conditioned if self.model.reads_tokens else self._levels)(tree, frontier, depth, has_stage)
        if not host.on_host(frontier.device) or not bool(has_stage.all()):
            probs = probs.masked_fill(~has_stage[..., None], 0.0)  # no distribution, so no children
        self.seconds += perf_counter() - started
        return DraftProbs(probs.flatten(0, 1), self.columns), None

    def _levels(self, tree: TokenTree, frontier: Tensor, depth: Tensor, has_stage: Tensor) -> Float[Tensor, "B F W"]:
        """All heads in one product. The nodes of a level share its logits, and its distribution if no option reads paths."""
        stages, plain = self.model.stages, all(r.params.plain for r in self.rnd.requests)
        if self.level_distributions is None:
            y = self.model.outputs(self.start, tree.tokens[:, 0])
            logits = self.model.logits(y, self.columns, torch.arange(stages, device=y.device).expand(y.shape[:-1]))
            self.level_distributions = (
                self._probs(logits, tree, torch.zeros_like(logits[..., 0]).long()) if plain else logits
            )
        at = depth.clamp_max(stages - 1)[..., None].expand(-1, -1, self.level_distributions.shape[-1])
        found = self.level_distributions.gather(1, at)
        return found if plain else self._probs(found, tree, frontier)

    def _conditioned(
        self, tree: TokenTree, frontier: Tensor, depth: Tensor, has_stage: Tensor
    ) -> Float[Tensor, "B F W"]:
        """Each node's stage reads what its parent left and its own token."""
        node = frontier.clamp_min(0)
        self.place = torch.nn.functional.pad(self.place, (0, tree.num_nodes - self.place.shape[1]))
        above = self.place.gather(1, tree.parents.gather(1, node).clamp_min(0)).flatten()
        sequence = torch.arange(tree.batch, device=node.device)[:, None].expand_as(node).flatten()
        tokens = tree.tokens.gather(1, node).flatten()
        places: list[Tensor] = []
        outputs: list[Tensor] = []
        stages: list[Tensor] = []
        for k in sorted(set(depth[has_stage].tolist())):  # one, where the policy grows level by level
            at = (has_stage & (depth == k)).flatten().nonzero()[:, 0]
            before = self.start[sequence[at]] if k == 0 else self.carries[k - 1][above[at]]
            carry, y = self.model.step(k, before, tokens[at])
            held = self.carries.get(k, carry[:0])
            self.place[sequence[at], node.flatten()[at]] = torch.arange(
                len(held), len(held) + len(at), device=at.device
            )
            self.carries[k] = torch.cat([held, carry])
            places.append(at)
            outputs.append(y)
            stages.append(torch.full_like(at, k))
        if not outputs:
            width = self.rnd.requests[0].vocab_size if self.columns is None else len(self.columns)
            return self.start.new_zeros(*node.shape, width)
        logits = self.model.logits(torch.cat(outputs), self.columns, torch.cat(stages))
        if len(places) > 1 or len(logits) < node.numel():
            some = logits.new_zeros(node.numel(), logits.shape[-1])
            logits = some.index_copy(0, torch.cat(places), logits)
        return self._probs(logits.view(*node.shape, -1), tree, frontier)

    def _probs(
        self, logits: Float[Tensor, "B K W"], tree: TokenTree, nodes: Int[Tensor, "B K"]
    ) -> Float[Tensor, "B K W"]:
        return self.rnd.probs(logits, tree, nodes.clamp_min(0), self.columns, ranked=self.ranked)
