"""Verdict: what a rule accepted. Outcome: one record of a round for drafter, controller, scheduler and watchers."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.host import host, put
from draftwood.core.proposal import Proposal

PARTS = ("plan", "propose", "score", "verify", "commit", "emit")


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The accepted path and the token after it."""

    path: Int[Tensor, "B D"]  # accepted SCORED nodes, root first, -1 after the end
    count: Int[Tensor, "B"]  # accepted draft tokens; the round emits count + 1
    next_token: Int[Tensor, "B"]  # corrected, bonus or accepted AHEAD token: the next root
    on_host: "HostVerdict | None" = None  # the same on the host, from rules that decide there

    def to_host(self) -> "HostVerdict":
        """In one copy from the device, if there is none yet."""
        if self.on_host is not None:
            return self.on_host
        whole: list[list[int]] = host(torch.cat([self.path, self.next_token[:, None]], dim=1))
        return HostVerdict([[n for n in each[:-1] if n >= 0] for each in whole], [each[-1] for each in whole])

    def take(self, sequences: list[int]) -> "Verdict":
        """Some sequences of the batch."""
        at, lists = put(sequences, self.path.device), self.on_host
        if lists is not None:
            lists = HostVerdict([lists.paths[b] for b in sequences], [lists.after[b] for b in sequences])
        return Verdict(self.path[at], self.count[at], self.next_token[at], lists)


@dataclass(frozen=True, slots=True, eq=False)
class HostVerdict:
    """A verdict as lists: accepted nodes of each sequence, root first, and the token after them."""

    paths: list[list[int]]
    after: list[int]


@dataclass(slots=True)
class Times:
    """Seconds of a round by part, as far as they are known without waiting for a device."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    draft_passes: int = 0
    draft_nodes: int = 0  # drafted tokens of all sequences together, probes counted
    draft_seconds: float = 0.0  # the part of "propose" that was model passes
    tokens: int = 0  # of the target pass
    context: int = 0  # cache entries those tokens could see, summed over the sequences
    prompt_tokens: int = 0  # tokens of the pass that were prompt, beyond the roots

    def __getitem__(self, part: str) -> float:
        return self.seconds.get(part, 0.0)

    def add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one round did. `tokens` are what the rule emitted; stop conditions are applied by the request."""

    proposal: Proposal
    verdict: Verdict
    tokens: Int[Tensor, "B D"]  # accepted tokens, then next_token; -1 padded
    seconds: Times
    drafted: tuple[int, ...] = ()  # scored nodes of each sequence's tree, and how deep it went
    deepest: tuple[int, ...] = ()
    emitted: list[list[int]] = field(default_factory=list[list[int]])  # `tokens` as lists
    clipped: tuple[int, ...] = ()  # tokens of each sequence that survived the stop conditions; empty: all did

    def take(self, sequences: list[int]) -> "Outcome":
        """Some sequences of the batch."""
        at = put(sequences, self.tokens.device)
        return replace(
            self,
            proposal=self.proposal.take(at),
            verdict=self.verdict.take(sequences),
            tokens=self.tokens[at],
            drafted=tuple(self.drafted[b] for b in sequences),
            deepest=tuple(self.deepest[b] for b in sequences),
            emitted=[self.emitted[b] for b in sequences],
            clipped=tuple(self.clipped[b] for b in sequences) if self.clipped else (),
        )

    # What controllers learn from. A stop condition may cut what the rule emitted, and after the end of a text nothing shows
    # how good a draft is. So accepted tokens count up to the cut, and levels below it count as never drafted. As rejected
    # they would make every end seem hard to draft. To leave such rounds out would also bias: an end that was drafted cuts
    # its round, an end that the target emitted itself cuts nothing, and only the second would be counted.

    @property
    def accepted(self) -> list[int]:
        """Drafted tokens of each sequence that became text. No host read once the verdict is on the host."""
        return [min(count, kept) for count, kept in self._counts()]

    @property
    def judged(self) -> list[int]:
        """Levels of each sequence's draft that were judged as text: all of them, or those before the cut."""
        each = zip(self._counts(), self.deepest, strict=True)
        return [deepest if kept > count else min(kept, deepest) for (count, kept), deepest in each]

    def _counts(self) -> list[tuple[int, int]]:
        """Drafted tokens that the rule accepted, and emitted tokens that survived."""
        counts = [len(path) - 1 for path in self.verdict.to_host().paths]
        return list(zip(counts, self.clipped or [count + 1 for count in counts], strict=True))
