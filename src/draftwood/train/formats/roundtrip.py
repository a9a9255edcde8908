"""The round-trip check of a conversion: the head that was read and the head that was written give the same logits.

EAGLE heads draft a chain of three tokens after five positions; other heads run all their stages. The input is random. The
target's embedding and LM head are the real ones if the target is given, otherwise random.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.modules.eagle import EagleNet
from draftwood.drafters.nets.modules.eagle3 import Eagle3Net
from draftwood.drafters.nets.modules.hydra import HydraNet
from draftwood.drafters.nets.modules.medusa import MedusaNet, MedusaTablesNet
from draftwood.drafters.nets.modules.mlp import MLPNet, MLPTablesNet
from draftwood.errors import WeightsError
from draftwood.models.rope import angles, frequencies
from draftwood.train.formats.conversion import Target
from draftwood.train.objectives import inverse

STEPS, PREFIX = 3, 5
MOST = 4096  # columns that are compared without the target's LM head
LIMIT = 1e-4


@torch.inference_mode()
def largest_difference(old: Head, new: Head, target: Target | None, seed: int = 0) -> tuple[float, int]:
    """(largest difference of logits, number of columns compared), over the draft vocabulary of `old`."""
    if old.config.taps != new.config.taps:  # random features would hide it
        raise WeightsError(f"the head that was read taps {old.config.taps}, the one that was written {new.config.taps}")
    tokens = columns(old)
    if target is None and not _own_lm_head(old):
        tokens = tokens[:MOST]
    if bool((inverse(columns(new), new.config.layer.vocab_size)[tokens] < 0).any()):
        raise WeightsError("the written head lacks columns of the head that was read")
    given = random_input(old, tokens, target, seed)
    first, second = logits(old, tokens, given), logits(new, tokens, given)
    return float((first - second).abs().max()), len(tokens)


def columns(head: Head) -> Int[Tensor, "W"]:
    return torch.arange(head.config.layer.vocab_size) if head.ids is None else head.ids


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """Features, drafted tokens with their embeddings, and LM-head rows of the target."""

    features: list[Float[Tensor, "P H"]]  # one for each tap
    drafted: Int[Tensor, "N"]  # one for each feature, then one for each draft
    embedded: Float[Tensor, "N H"]
    rows: Float[Tensor, "W H"]


def random_input(head: Head, tokens: Int[Tensor, "W"], target: Target | None, seed: int) -> Input:
    noise = torch.Generator().manual_seed(seed)
    d, length = head.config.target_hidden, PREFIX + max(STEPS, head.config.stages)
    drafted = torch.randint(head.config.layer.vocab_size, (length,), generator=noise)
    features = [torch.randn(PREFIX, d, generator=noise) for _ in head.config.taps]
    if target is not None:
        return Input(features, drafted, target.embedding[drafted], target.lm_head[tokens])
    embedded = torch.randn(length, d, generator=noise)
    rows = torch.randn(min(len(tokens), MOST), d, generator=noise) / d**0.5
    return Input(features, drafted, embedded, rows)


def logits(head: Head, tokens: Int[Tensor, "W"], given: Input) -> Float[Tensor, "S W"]:
    """Logits of each draft or stage, columns in the order of `tokens` and of `given.rows`."""
    c, feature = head.config, given.features[0][-1]
    net = filled(head)
    if isinstance(net, EagleNet | Eagle3Net):
        y = _chain(net, given.features, given.embedded)
    elif isinstance(net, MedusaNet | MedusaTablesNet):
        y = torch.stack([net.head(k, feature) for k in range(c.stages)])
    elif isinstance(net, HydraNet):
        y = torch.stack([net.head(k, feature, list(given.embedded[: k + 1])) for k in range(c.stages)])
    elif isinstance(net, MLPNet | MLPTablesNet):
        y = _states(net, feature, given.drafted, given.embedded)
    else:
        raise WeightsError(f"a head of kind {c.kind!r} exists only in the draftwood format")
    if isinstance(net, Eagle3Net) and net.own_head:
        return _picked(net.lm_head(y), head, tokens)
    if isinstance(net, MedusaTablesNet | MLPTablesNet):
        return _picked(torch.stack([net.logits(k, row) for k, row in enumerate(y)]), head, tokens)
    return F.linear(net.read(y) if isinstance(net, MLPNet) else y, given.rows)


def _chain(net: EagleNet | Eagle3Net, features: list[Tensor], e: Float[Tensor, "N H"]) -> Float[Tensor, "S d"]:
    """Reads the target's features, then drafts from its own outputs. The LM head's input at each draft."""
    layer, c, prefix = net.layer, net.config.layer, len(features[0])
    freq, fused = frequencies(c), net.fuse(features)
    keys, values, read = [], [], []
    u = fused[:1]
    for i in range(prefix + STEPS - 1):
        u = fused[i : i + 1] if i < prefix else u
        inner, residual = net.enter(e[i : i + 1], u)
        q, k, v = layer.project(inner, *angles(freq, torch.tensor([i]), torch.float32))
        keys.append(k)
        values.append(v)
        wide = c.num_heads // c.num_kv_heads
        k, v = (torch.cat(x).repeat_interleave(wide, dim=1).transpose(0, 1) for x in (keys, values))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k, v).transpose(0, 1).flatten(1)
        a = layer.tail(residual, mixed)
        u = net.forward_feature(a)
        if i >= prefix - 1:
            read.append(net.read(a))
    return torch.cat(read)


def _states(net: MLPNet | MLPTablesNet, f: Tensor, drafted: Int[Tensor, "N"], e: Tensor) -> Float[Tensor, "S inner"]:
    state, found = net.start(f), []
    for k in range(net.config.stages):
        state = net.step(k, state, drafted[k] if isinstance(net, MLPTablesNet) else e[k])
        found.append(state)
    return torch.stack(found)


def _picked(full: Float[Tensor, "S W"], head: Head, tokens: Int[Tensor, "k"]) -> Float[Tensor, "S k"]:
    return full[:, inverse(columns(head), head.config.layer.vocab_size)[tokens]]


def _own_lm_head(head: Head) -> bool:
    c = head.config
    return (c.kind == "eagle3" and not c.target_rows) or c.own_tables
