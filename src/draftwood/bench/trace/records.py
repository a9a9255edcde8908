"""What a trace holds: a header, then for each request its question, its rounds and its end. One JSON line each.

    {"trace": 1, "model": ..., "recipe": ...}         first line
    {"ask": 0, "prompt": [...], "seed": 7, ...}       before the first round of a request
    {"t": [..], "n": 5, ..., "s": [[0, 41, ...]]}     one round with all of its sequences
    {"end": 0, "reason": "stop", "detail": "eos"}     after the last round of a request

Times are whole microseconds, scores have four decimals. Nodes are numbered from 1 in tree order; the root is 0.
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import PARTS, Times

VERSION = 1
LOWEST = -1e4  # stands for a score of -inf, which JSON lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the rounds were made with. `options` are KEY=VALUE words; `machine`: see bench/provenance.py."""

    model: str
    fingerprint: str
    backend: str
    recipe: str
    options: list[str]
    rule: str
    lossless: bool
    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    max_prefill_tokens: int
    tokenizer: str  # its fingerprint
    on_host: bool  # whether times of parts are those of the work, not of launching it
    machine: dict[str, Any] = field(default_factory=dict[str, Any])
    trace: int = VERSION

    @property
    def spelt(self) -> str:
        """The recipe with its options, as a command takes it."""
        return ":".join([self.recipe, *self.options])

    def line(self) -> dict[str, Any]:
        return {"trace": self.trace, **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "trace"}}

    @staticmethod
    def of(line: dict[str, Any]) -> "Header":
        return Header(**{f.name: line[f.name] for f in fields(Header)})


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, before its first round. `params`: fields of SamplingParams that differ from the default."""

    number: int
    prompt: list[int]
    seed: int
    eos: list[int]
    params: dict[str, Any]

    def line(self) -> dict[str, Any]:
        return {"ask": self.number, "prompt": self.prompt, "seed": self.seed, "eos": self.eos, "params": self.params}

    @staticmethod
    def of(line: dict[str, Any]) -> "Asked":
        return Asked(line["ask"], line["prompt"], line["seed"], line["eos"], line["params"])


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """One sequence in a round. `length`: known tokens before it, the root being the last."""

    request: int
    length: int
    tokens: list[int]  # of the scored nodes, the root left out
    parents: list[int]
    sources: list[int]  # the drafter of each node; one number where it is the same for all
    scores: list[float]
    path: list[int]  # accepted nodes, the root left out
    emitted: list[int]  # by the rule: accepted tokens, then the next root
    kept: int  # of them, after stop conditions

    @property
    def accepted(self) -> int:
        """Drafted tokens that became text."""
        return min(len(self.path), self.kept)

    def depths(self) -> list[int]:
        """Of the root and every node."""
        found = [0]
        for parent in self.parents:
            found.append(found[parent] + 1)
        return found

    def line(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(self)]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of the engine: seconds by part, and the sequences that decoded in it."""

    times: Times
    sequences: tuple[SequenceRecord, ...]

    @property
    def decodes(self) -> bool:
        """Whether nothing but decoding was in the pass."""
        return bool(self.sequences) and not self.times.prompt_tokens

    @property
    def emitted(self) -> int:
        """Tokens that became text."""
        return sum(each.kept for each in self.sequences)

    def line(self) -> dict[str, Any]:
        t = self.times
        return {
            "t": [round(1e6 * t[part]) for part in PARTS],
            "n": t.tokens,
            "c": t.context,
            "p": t.prompt_tokens,
            "d": [t.draft_passes, t.draft_nodes, round(1e6 * t.draft_seconds)],
            "s": [each.line() for each in self.sequences],
        }

    @staticmethod
    def of(line: dict[str, Any]) -> "RoundRecord":
        passes, nodes, micros = line["d"]
        times = Times(
            seconds={part: 1e-6 * each for part, each in zip(PARTS, line["t"], strict=True)},
            draft_passes=passes,
            draft_nodes=nodes,
            draft_seconds=1e-6 * micros,
            tokens=line["n"],
            context=line["c"],
            prompt_tokens=line["p"],
        )
        return RoundRecord(times, tuple(SequenceRecord(*each) for each in line["s"]))


@dataclass(frozen=True, slots=True)
class Ended:
    number: int
    reason: str
    detail: str | None

    def line(self) -> dict[str, Any]:
        return {"end": self.number, "reason": self.reason, "detail": self.detail}

    @staticmethod
    def of(line: dict[str, Any]) -> "Ended":
        return Ended(line["end"], line["reason"], line["detail"])


Record = Asked | RoundRecord | Ended
KINDS: dict[str, Any] = {"ask": Asked, "t": RoundRecord, "end": Ended}


def stored_params(params: SamplingParams) -> dict[str, Any]:
    """What differs from the default, as JSON can hold it. A grammar is a function: only that there was one is known."""
    default, found = SamplingParams(), {}
    for name in SamplingParams.__slots__:
        value = getattr(params, name)
        if name not in ("seed", "n") and value != getattr(default, name):
            found[name] = True if name == "grammar" else value
    if "logit_bias" in found:
        found["logit_bias"] = [[token, bias if isfinite(bias) else None] for token, bias in params.logit_bias.items()]
    return found


def loaded_params(asked: Asked) -> SamplingParams:
    """The options of a recorded request, without its grammar."""
    found = {name: value for name, value in asked.params.items() if name != "grammar"}
    if "logit_bias" in found:
        found["logit_bias"] = {token: -float("inf") if bias is None else bias for token, bias in found["logit_bias"]}
    return SamplingParams(**found, seed=asked.seed)
