"""PhrasePool: short continuations by the token before them, in bounded room. Phrasebook: one pool for each tenant.

key 7    (3, 1, 4)  (3, 1, 5)  (9, 2, 6)     at most `per_key`; a phrase that comes again moves to the end,
key 12   (7, 7, 1)                           and the one that was not refreshed for longest is dropped
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Phrase = tuple[int, ...]


@dataclass(slots=True)
class PhrasePool:
    """`per_key`: phrases of one token; `most`: of all together. Beyond that the token that was not refreshed for longest
    gives up its oldest phrase."""

    per_key: int
    most: int = 1 << 16
    phrases: dict[int, dict[Phrase, None]] = field(default_factory=dict[int, dict[Phrase, None]])
    size: int = 0

    def add(self, key: int, phrase: Sequence[int]) -> None:
        """Enter a phrase, or refresh it."""
        own, made = self.phrases.pop(key, {}), tuple(phrase)
        self.phrases[key] = own  # dictionaries keep the order of entry
        self.size -= made in own
        own.pop(made, None)
        own[made] = None
        self.size += 1
        if len(own) > self.per_key:
            del own[next(iter(own))]
            self.size -= 1
        while self.size > self.most:
            self._drop_oldest()

    def newest(self, key: int, count: int) -> list[Phrase]:
        """The last ones that were entered or refreshed, the newest first."""
        return list(reversed(self.phrases.get(key, {})))[:count]

    def correct(self, key: int, old: Phrase, new: Phrase) -> None:
        """Put another phrase in the place of one, in the same order. A phrase that is there already is not doubled."""
        own = self.phrases.get(key, {})
        if old == new or old not in own:
            return
        kept = [new if phrase == old else phrase for phrase in own if phrase != new]
        self.size += len(kept) - len(own)
        self.phrases[key] = dict.fromkeys(kept)

    def _drop_oldest(self) -> None:
        key, own = next(iter(self.phrases.items()))
        del own[next(iter(own))]
        self.size -= 1
        if not own:
            del self.phrases[key]


@dataclass(slots=True)
class Phrasebook:
    """Pools by tenant: no request is drafted from phrases of another tenant's texts. `tenants`: so many pools at most; the
    one that was not used for longest is dropped."""

    per_key: int
    most: int = 1 << 16
    tenants: int = 64
    pools: dict[str, PhrasePool] = field(default_factory=dict[str, PhrasePool])

    def pool(self, tenant: str) -> PhrasePool:
        found = self.pools.pop(tenant, None) or PhrasePool(self.per_key, self.most)
        self.pools[tenant] = found
        if len(self.pools) > self.tenants:
            del self.pools[next(iter(self.pools))]
        return found
