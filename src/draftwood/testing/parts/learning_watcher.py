"""LearningWatcher: a watcher that trains a feature head on the rounds it is given, and refreshes the weights of the drafter.

A copy of the head learns between rounds, and `refresh` copies its weights into the head that drafts. Weights decide how
much of a draft is accepted, never the text.
"""

from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import FINAL, ForwardOutput
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.train_plan import Shown
from draftwood.core.verdict import Outcome
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.runners.runner import FeatureModel


class LearningWatcher:
    """`net`: the net of the head; a copy of it learns. Its one tap is FINAL. Every `every` rounds it takes one step on the
    last `window` tokens of each text, then refreshes the drafter unless `refresh` is False."""

    def __init__(
        self,
        model: FeatureModel,
        net: Any,
        target: Runner,
        *,
        every: int = 4,
        window: int = 48,
        rate: float = 3e-3,
        refresh: bool = True,
    ) -> None:
        self.model, self.net, self.target = model, deepcopy(net).requires_grad_(True), target
        self.every, self.window, self.refresh = every, window, refresh
        self.losses: list[float] = []
        self.rounds = 0
        ids = torch.arange(target.info.vocab_size) if model.ids is None else model.ids
        self._learner = Unrolled(self.net, ids, steps=1)
        self._optimiser = torch.optim.Adam(self.net.parameters(), lr=rate)
        self._tokens: dict[int, list[int]] = defaultdict(list)  # by request
        self._features: dict[int, list[Tensor]] = defaultdict(list)

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        self._collect(rnd, outcome, output)
        self.rounds += 1
        if self.rounds % self.every == 0:
            self._learn(rnd)
        for request in rnd.requests:
            if request.finished:  # its id may be used again
                self._tokens.pop(request.id, None)
                self._features.pop(request.id, None)

    def _learn(self, rnd: Round) -> None:
        texts = [shown for request in rnd.ids if (shown := self._shown(request)) is not None]
        if not texts:
            return
        self._step(texts)
        if self.refresh:
            self.model.refresh(self.net.state_dict())

    def _collect(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        """Tokens and target features of the accepted nodes: a text without gaps, from the first root on."""
        index, tree = output.token_index, outcome.proposal.tree
        if index is None:
            return
        for b, path in enumerate(outcome.verdict.to_host().paths):
            request = rnd.requests[b].id
            self._tokens[request] += tree.tokens[b, path].tolist()
            self._features[request].append(output.features[FINAL][index[b, path]])

    def _shown(self, request: int) -> Shown | None:
        ids = torch.tensor([self._tokens[request][-self.window :]])
        if ids.shape[1] < 4:
            return None
        feature = torch.cat(self._features[request])[None, -self.window :]
        every = torch.ones_like(ids, dtype=torch.bool)
        return Shown(ids, ids, every, every, {FINAL: feature}, self.target.embed, self._rows)

    def _rows(self, ids: Int[Tensor, "W"] | None) -> Float[Tensor, "W H"]:
        """Rows of the target's LM head, computed from unit vectors."""
        unit = torch.eye(self.target.info.hidden_size, dtype=self.target.info.dtype)
        return self.target.head(unit, ids=ids, norm=False).T

    def _step(self, texts: Iterable[Shown]) -> None:
        self._optimiser.zero_grad()
        parts = [loss for shown in texts for _, loss, _ in self._learner.losses(shown, 0.0)]
        total = torch.stack(parts).mean()
        total.backward()
        self._optimiser.step()
        self.losses.append(float(total.detach()))
