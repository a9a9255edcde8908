"""An evolutionary search over sets of skipped sub-layers, which can be interrupted and goes on from its log.

The first sets are made by hand, as layers near both ends matter most: every second middle attention, the middle third of
attentions, every third middle layer. After them every new set is a child of good ones: bits of two parents, some of them
flipped. What each evaluation tries depends only on the seed, its number and the results before it, so a search that was
interrupted goes on as if it had not been.
"""

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.errors import OptionError
from draftwood.search.skip_objective import Measured, Predicted
from draftwood.search.sub_layer_costs import RoundCosts

KEPT = 3  # layers at each end that are never left out
PARENTS = 8  # the best sets so far, of which parents are taken
FLIPS = (0, 1, 1, 2, 4)  # bits of a child that are not its parents
TRIES = 200  # children that were tried before, until the search ends


@dataclass(frozen=True, slots=True)
class Tried:
    """One evaluation."""

    skip: SkipSet
    measured: Measured
    predicted: Predicted

    def record(self) -> dict[str, Any]:
        return {"skip": str(self.skip), "measured": asdict(self.measured), "predicted": asdict(self.predicted)}

    @staticmethod
    def of(record: dict[str, Any], num_layers: int) -> "Tried":
        """ValueError, KeyError or TypeError if this is none, OptionError if it is of another model."""
        measured, predicted = record["measured"], Predicted(**record["predicted"])
        survival = tuple(float(share) for share in measured["survival"])
        rates = predicted.tokens_per_second, predicted.speed_up
        if not all(type(rate) is float and 0 < rate < inf for rate in rates) or not survival:
            raise ValueError(f"no speed: {record['predicted']}")
        if type(predicted.depth) is not int or not 1 <= predicted.depth <= len(survival):
            raise ValueError(f"no depth: {predicted.depth!r}")
        skip = SkipSet.parse(str(record["skip"])).check(num_layers)
        return Tried(skip, Measured(survival, int(measured["rounds"]), int(measured["tokens"])), predicted)


def middle(num_layers: int) -> range:
    """Layers that may be left out; of a small model all but the first and the last, or all."""
    kept = KEPT if num_layers > 3 * KEPT else 1 if num_layers > 2 else 0
    return range(kept, num_layers - kept)


def first_sets(num_layers: int) -> list[SkipSet]:
    """Made by hand."""
    inner = middle(num_layers)
    third = inner[len(inner) // 3 : 2 * len(inner) // 3] or inner
    found = [
        SkipSet.of(inner[::2]),
        SkipSet.of(third),
        SkipSet.of(inner[::3], inner[::3]),
        SkipSet.of(inner[::2], inner[::4]),
        SkipSet.of(third, third),
        SkipSet.of(inner),
    ]
    return [each for each in dict.fromkeys(found) if len(each) < 2 * num_layers]


def next_set(tried: Sequence[Tried], num_layers: int, seed: int) -> SkipSet | None:
    """What the next evaluation tries; None: nothing new was found."""
    known = {each.skip for each in tried}
    for each in first_sets(num_layers):
        if each not in known:
            return each
    rng = random.Random(f"{seed} {len(tried)}")
    best = sorted(tried, key=lambda t: -t.predicted.tokens_per_second)[:PARENTS]
    inner = middle(num_layers)
    bits = [(kind, i) for kind in range(2) for i in inner]
    for _ in range(TRIES):
        one, other = rng.choice(best).skip, rng.choice(best).skip
        child: list[set[int]] = [set(), set()]
        for kind, i in bits:
            from_one = (one.attention, one.mlp)[kind] if rng.random() < 0.5 else (other.attention, other.mlp)[kind]
            if i in from_one:
                child[kind].add(i)
        for kind, i in rng.sample(bits, min(rng.choice(FLIPS), len(bits))):
            child[kind] ^= {i}
        found = SkipSet.of(*child)
        if found not in known and len(found) < 2 * num_layers:
            return found
    return None


class Log:
    """Evaluations, one JSON line each, behind a line that says of which search they are and with which costs. `measure`: the
    costs, asked for once: a search that goes on must not compare sets by other times."""

    def __init__(self, path: Path, search: dict[str, Any], num_layers: int, measure: Callable[[], RoundCosts]) -> None:
        self.path, self.tried, self.num_layers = path, list[Tried](), num_layers
        if path.exists() and not path.is_file():
            raise OptionError(f"{path} is no file\nhint: another --log")
        if path.exists() and path.stat().st_size:
            self.costs = self._read(search)
        else:
            self.costs = measure()
            self._append({**search, "costs": self.costs.record()})

    def _read(self, search: dict[str, Any]) -> RoundCosts:
        text = self.path.read_bytes().decode(errors="replace")
        lines, at = text.splitlines(), 1
        whole: dict[SkipSet, str] = {}
        try:
            before = json.loads(lines[0])
            costs = RoundCosts.of(before["costs"])
            for at, line in enumerate(lines[1:], 2):
                try:
                    found = Tried.of(json.loads(line), self.num_layers)
                except (ValueError, KeyError, TypeError):
                    if at < len(lines):  # only the last line can be half written
                        raise
                    break
                if found.skip not in whole:
                    self.tried.append(found)
                    whole[found.skip] = line
        except (ValueError, KeyError, TypeError, RecursionError, OptionError) as error:
            why = str(error).partition("\n")[0]
            raise OptionError(f"{self.path} is no log of a search: line {at}: {why}\nhint: another --log") from None
        other = {key: (before.get(key), value) for key, value in search.items() if before.get(key) != value}
        if other:
            told = ", ".join(f"{key} {then!r} then, {now!r} now" for key, (then, now) in other.items())
            raise OptionError(
                f"{self.path} is the log of another search: {told}\nhint: the same options, or another --log"
            )
        if len(whole) < len(lines) - 1 or not text.endswith("\n"):
            self._rewrite([lines[0], *whole.values()])
        return costs

    def _rewrite(self, lines: Sequence[str]) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("".join(f"{line}\n" for line in lines))
        partial.replace(self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One search at a time: two would try the same sets."""
        try:
            lock = FileLock(self.path.with_name(self.path.name + ".lock")).acquire(blocking=False)
        except Timeout:
            raise OptionError(f"another search is writing {self.path}\nhint: wait for it, or another --log") from None
        with lock:
            yield

    def add(self, tried: Tried) -> None:
        self.tried.append(tried)
        self._append(tried.record())

    def _append(self, record: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def evaluations(
    log: Log, num_layers: int, budget: int, seed: int, evaluate: Callable[[SkipSet], Tried]
) -> Iterator[Tried]:
    """Evaluations up to `budget`, those of the log counted; each is in the log before it is handed out."""
    while len(log.tried) < budget:
        skip = next_set(log.tried, num_layers, seed)
        if skip is None:
            return
        found = evaluate(skip)
        log.add(found)
        yield found
