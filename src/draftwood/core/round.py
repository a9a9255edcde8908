"""Round: the B sequences that decode together now, with their random numbers and their draft distributions."""

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw
from draftwood.core.request import Request
from draftwood.core.sampling.keys import fold, fold_ints, word
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.processors import adjust
from draftwood.core.sampling.random import Keyed, Noise
from draftwood.core.sampling.sampler import Sampler
from draftwood.core.sampling.truncation import top
from draftwood.core.tree import TokenTree

if TYPE_CHECKING:
    from draftwood.core.protocols import Runner

TARGET = "target"
"""The purpose of the target's own samples: keyed by (seed, position) alone, so any draft leaves them unchanged."""


_FEW = 16  # keys that are folded faster one by one


class Round:
    """B sequences of a round. `lengths` counts known tokens, the root being the last of them."""

    def __init__(
        self,
        slots: Int[Tensor, "B"],
        lengths: Int[Tensor, "B"],
        requests: tuple[Request, ...],
        *,
        origin: dict[int, Float[Tensor, "B H"]] | None = None,
        columns: Int[Tensor, "W"] | None = None,
        target: "Runner | None" = None,
        noise: Noise | None = None,
        stream: str = "",
        host_slots: list[int] | None = None,
        host_lengths: list[int] | None = None,
        in_flight: bool = False,
        draft_temperature: float = 1.0,
    ) -> None:
        self.slots, self.lengths, self.requests = slots, lengths, requests
        if host_slots is not None:
            self.host_slots = host_slots
        if host_lengths is not None:
            self.host_lengths = host_lengths
        self.origin = {} if origin is None else origin
        self.columns, self.target = columns, target
        self.noise: Noise = Keyed() if noise is None else noise
        self.stream = stream
        self.in_flight = in_flight  # the target's pass over the base runs: only AHEAD nodes may be added to it
        self.draft_temperature = draft_temperature  # times that of each sampled sequence, of draft distributions alone
        self.device = lengths.device
        self._keys: dict[str, Tensor] = {}

    @property
    def batch(self) -> int:
        return len(self.requests)

    @cached_property
    def host_slots(self) -> list[int]:
        """The slots as numbers; without a host read if the engine has given them."""
        return host(self.slots)

    @cached_property
    def host_lengths(self) -> list[int]:
        return host(self.lengths)

    @property
    def ids(self) -> list[int]:
        return [r.id for r in self.requests]

    @cached_property
    def sampler(self) -> Sampler:
        return Sampler([r.params for r in self.requests], self.device)

    def roots(self) -> Int[Tensor, "B"]:
        """The newest known token of each sequence."""
        return put([r.root for r in self.requests], self.device)

    def probs(
        self,
        logits: Float[Tensor, "B K W"],
        tree: TokenTree,
        nodes: Int[Tensor, "B K"],
        ids: Int[Tensor, "W"] | None = None,
        *,
        ranked: bool = False,
    ) -> Float[Tensor, "B K W"]:
        """Draft distributions, made from logits as the target's are: the options of each sequence along each node's own
        path, then `draft_temperature`, temperature and truncation. Options act before any token is drawn, so a mask
        can never bias a draw.
        Where they leave no token, the distribution is zeros, and the node gets no children.

        `ranked`, for siblings that differ: a greedy sequence takes the best tokens one after another, of which a one-hot
        distribution would know only the first. Such sequences keep the distribution of temperature 1.
        """
        logits, failed = self.adjusted(logits, tree, nodes, ids)
        probs = self.sampler.dense(self.sampler.drafted(logits, self.draft_temperature), ranked)
        for b, k in failed:
            probs[b, k] = 0.0
        return probs

    def adjusted(
        self,
        logits: Float[Tensor, "B K W"],
        tree: TokenTree,
        nodes: Int[Tensor, "B K"],
        ids: Int[Tensor, "W"] | None = None,
    ) -> tuple[Float[Tensor, "B K W"], dict[tuple[int, int], str]]:
        """Logits after the penalties, bias and bans of each sequence along each node's path; and the nodes (b, k) that have
        no token left, with the reason."""
        special = [b for b, r in enumerate(self.requests) if not r.params.plain]
        failed: dict[tuple[int, int], str] = {}
        if not special:
            return logits, failed
        logits = logits.clone()
        tokens = host(tree.take(put(special, self.device)).path_tokens(nodes[special]))
        for b, whole in zip(special, tokens, strict=True):
            drafted = {k: [t for t in path if t >= 0] for k, path in enumerate(whole)}
            # Plain decoding never gets behind an end, and a grammar need not know what follows one.
            here = [k for k, path in drafted.items() if not self.requests[b].ended_by(path)]
            if here:
                paths = [drafted[k] for k in here]
                logits[b, here], dead = adjust(logits[b, here], self.requests[b], paths, ids)
                failed |= {(b, here[k]): reason for k, reason in dead.items()}
        return logits, failed

    def temperature(self) -> list[float] | None:
        """What the logits of each sequence are divided by, if its ranked distribution needs nothing else: for drafters whose
        models rank by themselves. None: some options need `probs`."""
        plain = all(r.params.plain for r in self.requests)
        return self.sampler.temperature(self.draft_temperature) if plain else None

    def softmax_temperatures(self) -> list[float | None]:
        """By what the logits of each sequence are divided if its draft distribution is their softmax and nothing else; None:
        it needs `probs`. For drafters whose models make and draw such distributions by themselves."""
        each, factor = zip(self.requests, self.sampler.whole, strict=True), self.draft_temperature
        return [factor * r.params.temperature if whole and r.params.plain else None for r, whole in each]

    def key(self, purpose: str, at: Int[Tensor, "B *S"], turn: int | Int[Tensor, "S"] = 0) -> Int[Tensor, "B *S"]:
        """The key of one random number. For TARGET, `at` is the depth below the root; otherwise the node."""
        shape = (-1,) + (1,) * (at.ndim - 1)
        if purpose == TARGET and not self.stream:
            return fold(self._begun(purpose).view(shape), (self.lengths - 1).view(shape) + at)
        return fold(self._begun(purpose).view(shape), at, turn)

    def target_key(self, depth: int) -> Int[Tensor, "B"]:
        """The keys of the target's own samples, all equally deep below their roots."""
        if self.stream or self.batch > _FEW or not hosts.on_host(self.device):
            return self.key(TARGET, torch.full_like(self.lengths, depth))
        seeded, purpose = zip(self.requests, self.host_lengths, strict=True), word(TARGET)
        return put([fold_ints(r.seed, purpose, length - 1 + depth) for r, length in seeded], self.device)

    def _begun(self, purpose: str) -> Int[Tensor, "B"]:
        """The part that all keys of one purpose share. Folding is most of the cost of a coin, so it is done once a round."""
        if purpose not in self._keys:
            own = purpose == TARGET and not self.stream
            words = [word(purpose)] if own else [word(purpose), word(self._draft_stream)]
            if hosts.on_host(self.device) or self.batch > _FEW:
                key = fold(self.seeds, *words)
            else:  # host numbers are folded on the host: on an accelerator a fold is fifteen launches
                key = put([fold_ints(r.seed, *words) for r in self.requests], self.device)
            self._keys[purpose] = key if len(words) == 1 else fold(key, self.lengths - 1)
        return self._keys[purpose]

    @property
    def _draft_stream(self) -> str:
        """Node numbers of a tree in flight may be those of nodes that were drawn and cut, so keys need another name."""
        return f"{self.stream}/ahead" if self.in_flight else self.stream

    @cached_property
    def seeds(self) -> Int[Tensor, "B"]:
        return put([r.seed for r in self.requests], self.device)

    def coin(
        self,
        purpose: str,
        at: Int[Tensor, "B *S"],
        prob: Float[Tensor, "B *S"],
        where: Bool[Tensor, "B *S"],
        turn: int | Int[Tensor, "S"] = 0,
    ) -> Bool[Tensor, "B *S"]:
        """True with probability `prob`, in the sequences where it is asked."""
        if not some(where):
            return torch.zeros_like(where)
        return self.noise.coin(self.key(purpose, at, turn), prob, where, self.ids)

    def pick(
        self,
        purpose: str,
        at: Int[Tensor, "B *S"],
        probs: Float[Tensor, "B *S V"] | Int[Tensor, "B *S V"] | TokenProbs,
        where: Bool[Tensor, "B *S"],
        turn: int | Int[Tensor, "S"] = 0,
    ) -> Int[Tensor, "B *S"]:
        """A token drawn from `probs`; it need not be normalised, and whole numbers are counts."""
        if isinstance(probs, TokenProbs) and probs.ids is not None and not some(where):
            return torch.full_like(at, -1)
        return self.noise.pick(self.key(purpose, at, turn), probs, where, self.ids)

    def guess(
        self, depth: Int[Tensor, "B *S"], probs: Float[Tensor, "B *S V"], where: Bool[Tensor, "B *S"]
    ) -> Int[Tensor, "B *S"]:
        """The token that a draft distribution gives with the target's own uniform of that position: a good guess, never a
        draw. For a greedy sequence the best token."""
        return self.noise.pick(self.key(TARGET, depth), self.sampler.certain(probs), where, self.ids)

    def sample(
        self, at: Int[Tensor, "B *S"], probs: Float[Tensor, "B *S W"], where: Bool[Tensor, "B *S"], turn: int = 0
    ) -> Int[Tensor, "B *S"]:
        """A token drawn for a draft; a greedy sequence takes the best one, without chance."""
        return self.pick("draft", at, self.sampler.certain(probs), where, turn)

    def draw(
        self, at: Int[Tensor, "B F"], probs: Float[Tensor, "B F W"], k: int, draw: Draw, where: Bool[Tensor, "B F"]
    ) -> Int[Tensor, "B F k"]:
        """k columns per node in draw order; -1 where a draw without replacement has nothing left.

        GIVEN: the k most probable, and no chance at all.
        """
        if draw is Draw.GIVEN:
            prob, best = top(probs, min(k, probs.shape[-1]))
            columns = torch.where((prob > 0) & where[..., None], best, -1)
            return torch.nn.functional.pad(columns, (0, k - columns.shape[-1]), value=-1)
        drawn: list[Tensor] = []
        left = probs
        for turn in range(k):
            token = self.sample(at, left, where, turn)
            drawn.append(token)
            if draw is Draw.DISTINCT and turn + 1 < k:
                left = left.scatter(-1, token.clamp_min(0)[..., None], 0.0)
        return torch.stack(drawn, dim=-1)

    def inner(self, stream: str) -> "Round":
        """The same sequences with random numbers of their own: for rules that run inside a drafter. Sharing coins with the
        outer rule would bias the output."""
        other = copy(self)
        other.stream, other._keys = f"{self._draft_stream}/{stream}", {}
        return other

    def ahead(self) -> "Round":
        """The same sequences while their pass runs, with random numbers of their own: no key may serve two draws. The
        target's own samples keep their keys, so that they can still be guessed."""
        other = copy(self)
        other.in_flight, other._keys = True, {}
        return other

    def trimmed(self, columns: Int[Tensor, "W"]) -> "Round":
        """The same sequences and random numbers; drafters use only these LM-head rows. Nested calls use those of both."""
        other = copy(self)
        outer = self.columns
        columns = columns.to(self.device)
        other.columns = columns if outer is None else columns[torch.isin(columns, outer)]
        return other

    def tempered(self, factor: float) -> "Round":
        """The same sequences and random numbers; drafts are drawn from sharper (below 1) or flatter distributions, which is
        what rules are told of. Exact for every factor: only acceptance depends on it."""
        if factor == 1:
            return self
        other = copy(self)
        other.draft_temperature = self.draft_temperature * factor
        return other

    def take(self, sequences: list[int]) -> "Round":
        """Some sequences of the round, with the same random numbers."""
        index = put(sequences, self.device)
        slots, lengths = vars(self).get("host_slots"), vars(self).get("host_lengths")  # None: not read so far
        return Round(
            self.slots[index],
            self.lengths[index],
            tuple(self.requests[b] for b in sequences),
            origin={tap: x[index] for tap, x in self.origin.items()},
            columns=self.columns,
            target=self.target,
            noise=self.noise,
            stream=self.stream,
            host_slots=None if slots is None else [slots[b] for b in sequences],
            host_lengths=None if lengths is None else [lengths[b] for b in sequences],
            in_flight=self.in_flight,
            draft_temperature=self.draft_temperature,
        )


def some(mask: Bool[Tensor, "*S"]) -> bool:
    """Whether anything is set. On an accelerator always True: reading the mask would make the host wait, which costs more
    than a few operations without effect. Loops, whose steps are many operations, read theirs."""
    return not hosts.on_host(mask.device) or bool(mask.any())
