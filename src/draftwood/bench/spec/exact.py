"""bench exact: do speculative recipes say what plain decoding says, and does plain decoding say what transformers says?

Token for token, up to near ties, with the number of rounds that accepted all, some and none of their draft beside it:
equality with nothing accepted shows nothing. A noisy oracle, which knows the plain answers and spoils them on purpose,
makes sure that every kind of round is seen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from draftwood.bench.spec.comparable import following, not_compared
from draftwood.bench.spec.near_ties import Parting, few_enough, first_difference, parting
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.proposal import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.testing.oracle import NoisyOracle
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PLAIN, ORACLE = "autoregressive", "noisy oracle"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Row:
    """One method against its reference. `why`: the reason that its texts are not compared; empty where they are."""

    name: str
    against: str
    why: str = ""
    lossless: bool = True
    answers: int = 0
    identical: int = 0
    compared: int = 0  # tokens up to and including the first difference
    emitted: int = 0
    passes: int = 0
    rounds: list[int] = field(default_factory=lambda: [0, 0, 0])  # all, some, none accepted
    preempted: int = 0
    disabled: int = 0
    near: list[tuple[int, Parting]] = field(default_factory=list[tuple[int, Parting]])
    wrong: list[tuple[int, Parting]] = field(default_factory=list[tuple[int, Parting]])

    @property
    def good(self) -> bool:
        """No difference but near ties, and few of those; of a method that is not compared, that it drafted to the end."""
        return not self.wrong and not self.disabled and few_enough(len(self.near), self.compared)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is asked and how. `batch` above 1: a ragged batch with arrivals, departures and preemption."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    batch: int = 1
    ties: bool = True  # False: float64 or a batch-invariant backend, where nothing is allowed to differ

    def of(self, index: int) -> SamplingParams:
        return replace(self.params, seed=(self.params.seed or 0) + index)


def compare(
    loaded: Loaded,
    names: Sequence[str],
    setting: Setting,
    *,
    against: str | None = None,
    say: Progress = lambda _: None,
) -> Iterator[Row]:
    """One row per comparison: transformers first if asked for, then every recipe, then the oracle."""
    alone = replace(setting, batch=1)
    plain = _answers(LLM(loaded, PLAIN, config=EngineConfig(max_num_seqs=1)), alone, PLAIN, say)
    if against == "transformers":
        yield _row(loaded, setting, PLAIN, "transformers", plain, _transformers(loaded, setting, say))
    elif against is not None:
        raise OptionError(f"cannot compare against {against!r}\nhint: 'transformers'")
    wanted = [r.output for r in plain]
    known = {p: w for p, w in zip(setting.prompts, wanted, strict=True)}
    for name in (*names, ORACLE):
        recipe: str | Recipe = _oracle(known, loaded.config.vocab_size) if name == ORACLE else name
        llm = _open(loaded, recipe, setting)
        got = _answers(llm, setting, name, say)
        why = not_compared(llm.recipe, setting.params.temperature)
        found = _row(loaded, setting, name, PLAIN, got, None if why else wanted)
        yield replace(found, why=why, lossless=llm.recipe.lossless)


def _open(loaded: Loaded, recipe: str | Recipe, setting: Setting) -> LLM:
    options = following(recipe, setting.params.temperature) if isinstance(recipe, str) else {}
    if setting.batch == 1:
        return LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1), **options)
    longest = sorted((len(p) + setting.params.max_tokens for p in setting.prompts), reverse=True)
    rows = max(sum(longest[: setting.batch]) // 3, longest[0] + 64)  # too few on purpose: somebody must be pushed out
    return LLM(
        loaded,
        recipe,
        config=EngineConfig(max_num_seqs=setting.batch, max_cache_tokens=rows, max_prefill_tokens=256),
        **options,
    )


def _oracle(known: dict[tuple[int, ...], list[int]], vocab_size: int) -> Recipe:
    drafter = NoisyOracle(known, vocab_size, right=0.7)
    return Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(4, 8))


def _answers(llm: LLM, setting: Setting, name: str, say: Progress) -> list[Request]:
    requests = [llm.request(p, setting.of(i)) for i, p in enumerate(setting.prompts)]
    if setting.batch == 1:
        for i, request in enumerate(requests):
            say(f"{name}: {i + 1} of {len(requests)}")
            llm.engine.add(request)
            while not request.finished:
                llm.engine.step()
        return requests
    _crowd(llm, setting, requests, name, say)
    return requests


def _crowd(llm: LLM, setting: Setting, requests: list[Request], name: str, say: Progress) -> None:
    """Arrivals two rounds apart; after every third one a stranger comes, decodes for five rounds and leaves."""
    waiting = list(requests)
    leaving: dict[int, Request] = {}
    turn = 0
    while waiting or llm.engine.has_work:
        if waiting and turn % 2 == 0:
            llm.engine.add(waiting.pop(0))
            if len(waiting) % 3 == 0:
                stranger = llm.request(setting.prompts[len(waiting)], replace(setting.params, seed=10**6 + turn))
                llm.engine.add(stranger)
                leaving[turn + 5] = stranger
        if turn in leaving:
            llm.engine.cancel(leaving[turn])
        llm.engine.step()
        turn += 1
        say(f"{name}: {sum(r.finished for r in requests)} of {len(requests)}")


def _row(
    loaded: Loaded,
    setting: Setting,
    name: str,
    against: str,
    got: Sequence[Request],
    wanted: Sequence[Sequence[int]] | None,
) -> Row:
    """`wanted` is None where texts are not compared: then only what was drafted is counted."""
    row = Row(name, against, answers=len(got))
    for i, request in enumerate(got):
        s = request.stats
        row.emitted += len(request.output)
        row.passes += s.target_passes
        row.rounds = [a + b for a, b in zip(row.rounds, (s.rounds_all, s.rounds_some, s.rounds_none), strict=True)]
        row.preempted += s.preempted
        row.disabled += s.disabled is not None
        if wanted is None:
            continue
        want = wanted[i]
        place = first_difference(request.output, want)
        if place is None:
            row.identical += 1
            row.compared += len(want)
            continue
        row.compared += place + 1
        found = parting(loaded.model, request.prompt, request.output, want, setting.of(i), place)
        (row.near if found.near and setting.ties else row.wrong).append((i, found))
    return row


def _transformers(loaded: Loaded, setting: Setting, say: Progress) -> list[list[int]]:
    """The same weights in transformers' own class, decoded by its own generate."""
    if setting.params.temperature:
        raise OptionError("transformers draws other random numbers\nhint: compare against it with --temperature 0")
    from draftwood.bench.spec.peers.transformers import reference

    model = reference(loaded)
    answers: list[list[int]] = []
    for i, prompt in enumerate(setting.prompts):
        say(f"transformers: {i + 1} of {len(setting.prompts)}")
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=setting.params.max_tokens,
            eos_token_id=list(loaded.config.eos_token_ids),
            pad_token_id=loaded.config.eos_token_ids[0],
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers
