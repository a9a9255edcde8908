"""What rounds cost: fitted from a trace, read from a file of timed rounds, measured on this machine before, or spelt out."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from draftwood.bench.trace.records import RoundRecord
from draftwood.controllers.costs.cost import KNOTS, LONGEST, CostModel
from draftwood.controllers.costs.draft_cost import DraftCost
from draftwood.core.verdict import Times
from draftwood.errors import OptionError
from draftwood.kernels.cpu.processor import processor_name
from draftwood.models.loading.folder_cache import cache_dir
from draftwood.sizing.choose_route import HEAD, NO_DRAFTER

MACHINE = "machine"
EXAMPLE = "pass=1:4.9,2:5.7,4:6.9,8:9.2 draft=0.6 rest=0.4"
_WEIGHT = 20  # rounds that a given number counts as: the fit of drafts leans towards 0 while it has few


@dataclass(frozen=True, slots=True)
class Costs:
    """`origin`: where they are from, in words. `host_draft`: seconds of drafting in rounds whose drafter ran no model; None:
    not known. `passes`: tokens of the smallest and of the largest pass they were measured on."""

    model: CostModel
    origin: str
    host_draft: float | None
    passes: tuple[int, int]

    def seconds(self, times: Times, host_draft: float) -> float:
        """Of one round. `host_draft`: of a drafter that runs no model."""
        draft = self.model.draft_seconds(times.draft_passes, times.draft_nodes) if times.draft_passes else host_draft
        return self.model.pass_seconds(times.tokens, times.context) + draft + self.model.rest_seconds()

    def with_draft_of(self, other: "Costs") -> "Costs":
        """The same, with the other's seconds of drafting where these have none."""
        if self.model.draft_seconds(1) or not other.model.draft_seconds(1):
            return self
        model = replace(self.model, draft=other.model.draft)
        return replace(self, model=model, origin=f"{self.origin}; drafting: {other.origin}")

    def timed_rounds(self, context: int) -> tuple[Times, ...]:
        """Rounds that cost what these costs say, for controllers that begin with timed ones."""
        found: list[Times] = []
        for tokens in (knot for knot in KNOTS if knot <= 128):
            for entries in (0, 2 * context):
                score, rest = self.model.pass_seconds(tokens, entries), self.model.rest_seconds()
                found.append(Times({"score": score, "emit": rest}, tokens=tokens, context=entries))
        return tuple(found)


def _fresh() -> CostModel:
    """A cost model in which every round counts the same, slow ones too: the sum of estimates is the sum of the rounds."""
    return CostModel(forget=1.0, outlier=inf, draft=DraftCost(forget=1.0, outlier=inf))


def fitted(rounds: Sequence[RoundRecord]) -> Costs:
    """The costs of a trace's own rounds. Passes over prompts count only where they are larger than all others: they say what
    a large tree would take, and nothing about the rest of a round."""
    decoding = [each.times for each in rounds if each.decodes]
    most = max((t.tokens for t in decoding), default=0)
    prompts = [each.times for each in rounds if not each.decodes and each.times.tokens > most]
    model = _fresh()
    scale = _rising({size: [t["score"] for t in decoding if t.tokens == size] for size in {t.tokens for t in decoding}})
    for times in decoding:
        seconds = {**times.seconds, "score": scale[times.tokens] * times["score"]}
        model.observe(replace(times, seconds=seconds))
    for times in prompts:
        model.observe(
            Times({"score": times["score"], "emit": model.rest_seconds()}, tokens=times.tokens, context=times.context)
        )
    host = [t["propose"] for t in decoding if not t.draft_passes]
    sizes = [t.tokens for t in decoding] or [t.tokens for t in prompts]
    return Costs(model, "the trace's own rounds", fmean(host) if host else None, (min(sizes), max(sizes)))


def _rising(seconds: dict[int, list[float]]) -> dict[int, float]:
    """Factors that make the mean of a larger pass no smaller than that of a smaller one, and keep the sum of all: neighbours
    in the wrong order share one mean. A cost model never lets time fall with size, so one slow moment in a small pass
    would otherwise raise all larger ones."""
    blocks: list[tuple[float, int, list[int]]] = []  # sum, rounds, sizes
    for size in sorted(seconds):
        block = sum(seconds[size]), len(seconds[size]), [size]
        while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
            total, count, sizes = blocks.pop()
            block = total + block[0], count + block[1], sizes + block[2]
        blocks.append(block)
    return {
        size: total / count * len(own) / sum(own) if sum(own := seconds[size]) else 1.0
        for total, count, sizes in blocks
        for size in sizes
    }


def chosen(text: str, fingerprint: str, backend: str) -> Costs:
    """`machine`, numbers such as EXAMPLE, or a file of timed rounds."""
    if text == MACHINE:
        return of_machine(fingerprint, backend)
    if re.match(r"\s*(pass|draft|rest)=", text):
        return spelt(text)
    return of_file(Path(text))


def spelt(text: str) -> Costs:
    """Milliseconds: of a target pass by its tokens, of each drafted level, and of the rest of a round."""
    try:
        words = dict(word.split("=", 1) for word in text.split())
        passes = {int(n): float(ms) for n, ms in (pair.split(":") for pair in words.pop("pass").split(","))}
        level, rest = float(words.pop("draft", 0)), float(words.pop("rest", 0))
        good = not words and min(passes) >= 1 and all(0 < ms < 1000 * LONGEST for ms in passes.values())
        good = good and 0 <= level < 1000 * LONGEST and 0 <= rest < 1000 * LONGEST
    except (ValueError, KeyError):
        good, passes, level, rest = False, {}, 0.0, 0.0
    if not good:
        raise OptionError(
            f"--cost cannot be {text!r}\nhint: milliseconds, for example {EXAMPLE!r}; a file; or {MACHINE}"
        )
    rounds = [Times({"score": ms / 1000, "emit": rest / 1000}, tokens=n) for n, ms in sorted(passes.items())]
    model = _observed(rounds)
    for levels in (1, 2, 4, 8) if level else ():
        for _ in range(_WEIGHT):
            model.draft.observe(levels, levels, levels * level / 1000)
    return Costs(model, "the numbers given", None, (min(passes), max(passes)))


def of_file(path: Path) -> Costs:
    """A list of timed rounds, or a file of the user's cache that holds one."""
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        listed = found["found"] if isinstance(found, dict) else found
        rounds = [_times(each) for each in listed]
        if not rounds:
            raise ValueError("no rounds")
    except OSError as error:
        raise OptionError(
            f"{path} cannot be read: {error.strerror}\nhint: a file of timed rounds, or {EXAMPLE!r}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OptionError(
            f"{path} holds no timed rounds: {type(error).__name__}: {error}\n"
            "hint: a list of rounds with seconds, tokens, context, as the folder `costs` of the user's cache has them"
        ) from None
    sizes = [each.tokens for each in rounds]
    return Costs(_observed(rounds), str(path), None, (min(sizes), max(sizes)))


def of_machine(fingerprint: str, backend: str) -> Costs:
    """What was timed on this machine for this model, when a recipe first asked for it."""
    found = remembered_files(fingerprint, backend)
    if not found:
        raise OptionError(
            f"nothing is remembered of this model's costs here ({backend}, {cache_dir() / 'costs'})\n"
            "hint: run the model once with the recipe auto, or give numbers: " + EXAMPLE
        )
    return of_file(found[-1])


def remembered_files(fingerprint: str, backend: str) -> list[Path]:
    """Files of timed rounds of this model with this backend, processor and number of threads: passes alone, then passes and
    drafts of the head that ships."""
    chips = [processor_name(), *([torch.cuda.get_device_name()] if torch.cuda.is_available() else [])]
    ends = [f" {chip} {torch.get_num_threads()} {drafter}" for drafter in (NO_DRAFTER, HEAD) for chip in chips]
    found: dict[str, Path] = {}
    for path in cache_dir().joinpath("costs").glob(f"{fingerprint}-*.json") if fingerprint else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            of = str(json.loads(path.read_text("utf-8"))["of"])
            if of.startswith(f"{backend} "):
                found |= {end: path for end in ends if of.endswith(end)}
    return [found[end] for end in ends if end in found]


def _observed(rounds: Iterable[Times]) -> CostModel:
    model = _fresh()
    for times in rounds:
        for _ in range(_WEIGHT):
            model.observe(times)
    return model


def _times(each: dict[str, Any]) -> Times:
    times = Times(**{f.name: each[f.name] for f in fields(Times) if f.name in each})
    if not times.tokens >= 1 or not 0 < times["score"] < LONGEST or not times.total < LONGEST:
        raise ValueError(f"no timed round: {each}")
    return times
