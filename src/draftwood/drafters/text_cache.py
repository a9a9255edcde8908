"""TextCache: the cache of a model that drafts or reviews beside the target, kept at the texts of the requests.

There are no phases: before the model drafts it runs whatever known text its cache lacks, so prompts, resumes, undrafted
rounds and the token it has not run after a full acceptance are all the same catch-up. After the target's verdict the entries
of accepted tokens stay, as far as they were run here, and all others are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftwood.core.host import put
from draftwood.core.protocols import Runner
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.score import KnownTokens, assemble
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome

Staged = tuple[dict[tuple[int, int], int], int]
"""Where the last draft of a slot staged its tokens, (staged entry, token behind it) -> its staged entry; and how many known
tokens were run before them."""


@dataclass(slots=True)
class TextCache:
    runner: Runner
    owner: dict[int, Request] = field(default_factory=dict[int, Request])
    staged: dict[int, Staged] = field(default_factory=dict[int, Staged])

    def chains(self, rnd: Round) -> list[KnownTokens]:
        """Known tokens that this model has not run yet, per sequence, the root being the last."""
        chains: list[KnownTokens] = []
        for slot, length, request in zip(rnd.host_slots, rnd.host_lengths, rnd.requests, strict=True):
            if self.owner.get(slot) is not request:
                self.free([slot])
                self.runner.admit(slot, request.known_from(0, length), before=request.before)
                self.owner[slot] = request
            done = self.runner.length(slot)
            chains.append(KnownTokens(slot, done, request.known_from(done, length)))
        return chains

    def catch_up(self, rnd: Round) -> None:
        """Run the same chunk the target has just run, so that no single catch-up is long."""
        idle = [b for b, slot in enumerate(rnd.host_slots) if slot not in self.staged]
        chains = [c for c in self.chains(rnd.take(idle)) if len(c.tokens) > 1]
        chains = [KnownTokens(c.slot, c.done, c.tokens[:-1]) for c in chains]
        if not chains:
            return
        tokens = assemble(chains, TokenTree.roots(put([c.tokens[-1] for c in chains], rnd.device)))[0]
        # Cache entries only: the head is expensive.
        self.runner.execute(replace(tokens, want=tokens.want[:0]))
        slots, texts = [c.slot for c in chains], [c.tokens for c in chains]
        self.runner.commit(slots, [list(range(len(text))) for text in texts], texts)

    def stage(self, chains: Sequence[KnownTokens], children: Sequence[dict[tuple[int, int], int]]) -> None:
        """A draft has run these known tokens, and staged these nodes behind them: what `keep` may keep."""
        self.staged |= {c.slot: (below, len(c.tokens)) for c, below in zip(chains, children, strict=True)}

    def keep(self, rnd: Round, outcome: Outcome) -> None:
        """Keep the entries of the accepted tokens as far as they were run here. The next root is never kept: its own entry
        is what the next draft starts from."""
        slots: list[int] = []
        kept: list[list[int]] = []
        texts: list[list[int]] = []
        paths = outcome.verdict.to_host().paths
        for slot, request, emitted, path in zip(rnd.host_slots, rnd.requests, outcome.emitted, paths, strict=True):
            if slot not in self.staged:
                continue
            children, chain = self.staged.pop(slot)
            entries = list(range(chain))
            for token in emitted[: len(path) - 1]:
                found = children.get((entries[-1], token))
                if found is None:
                    break
                entries.append(found)
            done = self.runner.length(slot)
            slots.append(slot)
            kept.append(entries)
            texts.append([*request.known_from(done, done + chain), *emitted[: len(entries) - chain]])
        self.runner.commit(slots, kept, texts)

    def free(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if self.owner.pop(slot, None) is not None:
                self.runner.free([slot])
            self.staged.pop(slot, None)
