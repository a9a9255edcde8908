"""A target that is a recorded text: the engine runs as ever, and no network does.

Under the rule `match` drafts never change the text, so the recorded text says what the target would have emitted after any
draft. What is simulated is real: scheduler, controller, drafter, tree and limits; only the pass and its time are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.bench.trace.costs import Costs
from draftwood.bench.trace.records import Header
from draftwood.core.forward import ALL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, Needs, logit_places
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.limit import Limit, Load
from draftwood.core.model_info import ModelInfo
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Cache, LengthController
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Outcome, Times, Verdict


@dataclass(frozen=True, slots=True)
class RecordedTokenizer:
    """What is known of the tokenizer of a trace."""

    fingerprint: str
    control_tokens: tuple[int, ...] = ()


class TextModel:
    """A model without layers, whose logits are zeros. Without the fingerprint of the recorded one: what is timed on it must
    never be kept as the costs of a real model."""

    cache_specs: tuple[CacheSpec, ...] = ()

    def __init__(self, header: Header) -> None:
        self.info = ModelInfo(
            vocab_size=header.vocab_size,
            num_layers=0,
            hidden_size=1,
            max_positions=header.max_model_len,
            backend=header.backend,
            batch_invariant=True,
            layer_ranges=False,
            name=header.model,
            tokenizer=RecordedTokenizer(header.tokenizer),
        )

    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        cache.stage(x)
        zero = torch.zeros(1, 1)
        return ForwardOutput(
            logits=zero.expand(len(x.want), self.info.vocab_size),  # of no memory, and only looked at by timing
            hidden=zero.expand(x.size, 1),
            logits_index=logit_places(x.want, x.size),
            features={tap: zero.expand(x.size, 1) for tap in taps},
            tokens=x,
        )

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return torch.zeros(*ids.shape, 1)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        return torch.zeros(*hidden.shape[:-1], self.info.vocab_size if ids is None else len(ids))


@dataclass(frozen=True, slots=True)
class FollowText:
    """The rule `match` where the target emits these texts, prompt and answer, by the id of the request."""

    texts: Mapping[int, Sequence[int]]
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Match"].draws
    shapes: frozenset[Shape] = RULES["Match"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree = target.host_tree
        after: list[list[int]] = []
        for request, length, depths in zip(rnd.requests, rnd.host_lengths, tree.depth, strict=True):
            text = self.texts[request.id]
            # Behind the end of an answer nothing is known, and nothing is kept.
            after.append([text[length + deep] if length + deep < len(text) else 0 for deep in depths])
        return tree.follow(after, rnd.device)


@dataclass(frozen=True, slots=True)
class Retimed:
    """A controller that is told what rounds would have taken by these costs, not what the simulation took."""

    inner: LengthController
    costs: Costs

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def init(self, slots: int) -> Any:
        return self.inner.init(slots)

    def plan(self, state: Any, rnd: Round, load: Load) -> Limit:
        return self.inner.plan(state, rnd, load)

    def update(self, state: Any, rnd: Round, outcome: Outcome) -> None:
        times, model = outcome.seconds, self.costs.model
        score = model.pass_seconds(times.tokens, times.context)
        seconds = {"score": score, "propose": times["propose"], "emit": model.rest_seconds()}
        self.inner.update(state, rnd, replace(outcome, seconds=replace(times, seconds=seconds)))

    def free(self, state: Any, slots: Sequence[int]) -> None:
        self.inner.free(state, slots)


@dataclass(frozen=True, slots=True)
class KnownCosts:
    """A cost model that a simulation does not change."""

    costs: Costs

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return self.costs.model.pass_seconds(tokens, context)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.costs.model.draft_seconds(passes, nodes)

    def rest_seconds(self) -> float:
        return self.costs.model.rest_seconds()

    def observe(self, times: Times) -> None:
        return None
