"""Rounds, drafts and scores over given distributions, without a model: for measuring rules."""

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardOutput
from draftwood.core.host import put
from draftwood.core.legal_draws import RULES
from draftwood.core.limit import Limit
from draftwood.core.model_info import CPU
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import TreePolicy, Verifier
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.probs import SamplingKernels
from draftwood.core.scored import Scored
from draftwood.core.tree import TokenTree
from draftwood.trees.grow import grow

ChildProbs = Callable[[Int[Tensor, "B F"]], DraftProbs]
"""Nodes -> the distribution of each one's children, sequence by sequence."""


def known_rules() -> dict[str, Verifier | None]:
    """Every rule of the table of exact pairings, by name; None where no such rule is built in."""
    return {name: _rule(name) for name in RULES}


def _rule(name: str) -> Verifier | None:
    module = f"draftwood.verifiers.{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}"
    if importlib.util.find_spec(module) is None:
        return None
    made: Any = getattr(importlib.import_module(module), name, None)
    return None if made is None else made()


def round_of(batch: int, vocab_size: int, *, seed: int = 0, top_p: float = 1.0, device: torch.device = CPU) -> Round:
    """Sequences without output at temperature 1, each with a seed of its own."""
    params = [SamplingParams(temperature=1.0, top_p=top_p, seed=seed * batch + b) for b in range(batch)]
    requests = tuple(Request(b, [0], each, vocab_size) for b, each in enumerate(params))
    return Round(put(range(batch), device), put([1] * batch, device), requests)


def drafted(policy: TreePolicy, rnd: Round, depth: int, nodes: int, distributions: ChildProbs) -> Proposal:
    """A draft as a drafter would make it, cut to `nodes`."""
    limit = Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device)
    made = grow(Proposal.roots(rnd.roots()), limit, policy, rnd, lambda tree, frontier: (distributions(frontier), None))
    if made.fault is not None:
        raise AssertionError(made.fault)
    return made.keep(policy.select(made.tree, limit))


def scored(
    logits: Float[Tensor, "U V"],
    place: Int[Tensor, "B N"],
    tree: TokenTree,
    rnd: Round,
    kernels: SamplingKernels | None = None,
    best: Int[Tensor, "U"] | None = None,
) -> Scored:
    """The scores of a target whose logits after node n of sequence b are `logits[place[b, n]]`. `kernels` and `best`: those
    of its backend."""
    at = torch.arange(len(logits), device=logits.device)
    output = ForwardOutput(logits, logits[:, :0], at, token_index=place, best=best, kernels=kernels)
    return Scored(output, tree, rnd)
