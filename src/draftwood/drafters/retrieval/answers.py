"""Answers: what past and running requests were answered, by tenant, in a bounded number of tokens."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from draftwood.core.request import Request
from draftwood.kernels.suffix_index import SuffixIndex


@dataclass(slots=True)
class _Answer:
    """One sequence of an index. A finished one has no request; one that met a full store is not recorded any further."""

    number: int
    tenant: str
    request: Request | None
    size: int = 0
    growing: bool = True


@dataclass(slots=True)
class _Tenant:
    index: SuffixIndex
    size: int = 0  # recorded tokens
    finished: deque[_Answer] = field(default_factory=deque[_Answer])  # the oldest first


@dataclass(slots=True)
class Answers:
    """One index for each tenant: a request is never drafted from another tenant's answers.

    All of them hold `max_tokens` tokens together. If there are more, the tenant that holds most gives up its oldest finished
    answer, so nobody who holds less than an equal share loses anything to others.
    """

    make: Callable[[], SuffixIndex]
    max_tokens: int
    tenants: dict[str, _Tenant] = field(default_factory=dict[str, _Tenant])
    running: dict[int, _Answer] = field(default_factory=dict[int, _Answer])  # by the identity of the request
    numbers: count = field(default_factory=count)

    @property
    def size(self) -> int:
        return sum(tenant.size for tenant in self.tenants.values())

    def index(self, tenant: str) -> SuffixIndex | None:
        return self.tenants[tenant].index if tenant in self.tenants else None

    def watch(self, request: Request) -> None:
        """Record what this request is answered, from now to its end, with a slot or without."""
        if id(request) not in self.running:
            self.running[id(request)] = _Answer(next(self.numbers), request.params.tenant, request)

    def update(self) -> None:
        """Record new tokens of all requests; forget the requests that have ended, not their answers."""
        for key, answer in list(self.running.items()):
            request = answer.request
            assert request is not None
            if answer.growing and len(request.output) > answer.size:
                self._record(answer, request.output[answer.size :])
            if request.finished:
                del self.running[key]
                answer.request = None
                if answer.size:
                    self.tenants[answer.tenant].finished.append(answer)

    def _record(self, answer: _Answer, new: list[int]) -> None:
        answer.growing = self._has_room(len(new))
        if not answer.growing:
            return
        if answer.tenant not in self.tenants:
            self.tenants[answer.tenant] = _Tenant(self.make())
        tenant = self.tenants[answer.tenant]
        tenant.index.append(answer.number, new)
        tenant.size += len(new)
        answer.size += len(new)

    def _has_room(self, more: int) -> bool:
        """After old answers were removed. False if running requests hold everything."""
        while self.size + more > self.max_tokens:
            able = [name for name, tenant in self.tenants.items() if tenant.finished]
            if not able:
                return False
            name = max(able, key=lambda name: self.tenants[name].size)
            tenant = self.tenants[name]
            oldest = tenant.finished.popleft()
            tenant.index.remove(oldest.number)
            tenant.size -= oldest.size
            if not tenant.size:
                del self.tenants[name]
        return True
