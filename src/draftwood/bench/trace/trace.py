"""Trace: a file of recorded rounds in memory, every round replayed against the text that was emitted."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from draftwood.bench.trace.file import records
from draftwood.bench.trace.records import Asked, Ended, Header, Record, RoundRecord, SequenceRecord
from draftwood.errors import TraceError

MATCH = "Match"  # the rule whose texts are plain decoding's at every temperature


@dataclass(slots=True)
class Recorded:
    """One request: what was asked, the tokens of its answer, and how it ended (None: the recording stopped before)."""

    asked: Asked
    alongside: int  # other requests that ran when it began
    follows: tuple[int, ...] = ()  # earlier requests whose prompts begin its own and that had ended: turns of one talk
    output: list[int] = field(default_factory=list[int])
    ended: Ended | None = None

    @property
    def text(self) -> list[int]:
        return self.asked.prompt + self.output

    @property
    def greedy(self) -> bool:
        return self.asked.params.get("temperature", 0.0) < 1e-6


@dataclass(slots=True)
class Trace:
    """`requests` by number. TraceError if a record contradicts those before it."""

    header: Header
    requests: list[Recorded] = field(default_factory=list[Recorded])
    rounds: list[RoundRecord] = field(default_factory=list[RoundRecord])

    def add(self, record: Record) -> None:
        if isinstance(record, Asked):
            _need(record.number == len(self.requests), f"request {record.number} after {len(self.requests)} others")
            running = sum(each.ended is None for each in self.requests)
            self.requests.append(Recorded(record, running, self._earlier_turns(record.prompt)))
        elif isinstance(record, Ended):
            self._request(record.number).ended = record
        else:
            for each in record.sequences:
                request = self._request(each.request)
                check(each, self.header.rule)
                known = len(request.asked.prompt) + len(request.output)
                _need(each.length == known, f"begins after {each.length} tokens, the text has {known}")
                request.output += each.emitted[: each.kept]
            self.rounds.append(record)

    def _earlier_turns(self, prompt: list[int]) -> tuple[int, ...]:
        before = ((i, each.asked.prompt) for i, each in enumerate(self.requests) if each.ended is not None)
        return tuple(i for i, other in before if prompt[: len(other)] == other)

    def _request(self, number: int) -> Recorded:
        _need(0 <= number < len(self.requests), f"request {number} was never asked")
        return self.requests[number]

    @property
    def answered(self) -> list[Recorded]:
        return [each for each in self.requests if each.output]

    @property
    def unfinished(self) -> int:
        """Requests that were still running when the recording stopped."""
        return sum(each.ended is None for each in self.requests)

    @property
    def num_tokens(self) -> int:
        return sum(len(each.output) for each in self.requests)


def read(path: Path) -> Trace:
    """TraceError if the file is no trace, is damaged, contradicts itself, or holds no round."""
    trace = collect(records(path), str(path))
    if not any(each.sequences for each in trace.rounds):
        raise TraceError(f"{path} holds no rounds\nhint: the recorded command has to emit at least one token")
    return trace


def collect(found: Iterable[Header | Record], where: str) -> Trace:
    """A trace from its header and its records."""
    trace: Trace | None = None
    for number, record in enumerate(found, 1):
        if isinstance(record, Header):
            trace = Trace(record)
            continue
        assert trace is not None
        try:
            trace.add(record)
        except (_WrongError, TypeError, IndexError, AttributeError) as error:
            raise TraceError(
                f"{where}, line {number}: the record contradicts the others: {error}\nhint: record it again"
            ) from None
    if trace is None:
        raise TraceError(f"{where} is empty\nhint: a file that --trace wrote")
    return trace


def walk(tokens: list[int], parents: list[int], text: list[int]) -> list[int]:
    """The nodes from the root down that carry the tokens of this text, as long as there are such: what the rule `match`
    accepts where the target emits the text."""
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(parents, tokens, strict=True), 1)}
    path, node = list[int](), 0
    for token in text:
        node = child.get((node, token), -1)
        if node < 0:
            break
        path.append(node)
    return path


def check(each: SequenceRecord, rule: str) -> None:
    """The accepted path leads from the root through nodes that carry the emitted tokens; under `match` no longer one
    does."""
    count = len(each.tokens)
    _need(len(each.parents) == len(each.scores) == count, f"{count} nodes, {len(each.parents)} parents")
    _need(all(0 <= parent < i for i, parent in enumerate(each.parents, 1)), "a node stands before its parent")
    _need(all(1 <= node <= count for node in each.path), f"the path {each.path} leaves the tree of {count} nodes")
    _need(0 <= each.kept <= len(each.emitted), f"{each.kept} of {len(each.emitted)} emitted tokens were kept")
    above = [0, *each.path]
    _need(all(each.parents[n - 1] == above[i] for i, n in enumerate(each.path)), f"{each.path} is no path")
    carried = [each.tokens[node - 1] for node in each.path]
    _need(carried == each.emitted[:-1], f"the path carries {carried}, emitted was {each.emitted}")
    if rule == MATCH and each.kept:
        found = walk(each.tokens, each.parents, each.emitted)
        _need(found == each.path, f"the text follows the nodes {found}, recorded are {each.path}")


class _WrongError(Exception):
    """Two records contradict each other."""


def _need(good: bool, why: str) -> None:
    if not good:
        raise _WrongError(why)
