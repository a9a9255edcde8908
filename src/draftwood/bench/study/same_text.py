"""bench exact: compares the tokens of recipes with plain decoding, and those of plain decoding with transformers.

Equality up to near ties, with the number of rounds that accepted all, some and none of their draft: equality where
nothing was accepted is no evidence. A noisy oracle, which drafts the plain answers with errors, makes every kind of round
occur.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from draftwood.bench.spec import text_equality
from draftwood.bench.spec.text_equality import Difference, following, not_compared
from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PLAIN, ORACLE = "autoregressive", "noisy oracle"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Comparison:
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
    every: int = text_equality.EVERY  # tokens among which one near tie is no sign of an error
    near: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])
    wrong: list[tuple[int, Difference]] = field(default_factory=list[tuple[int, Difference]])

    @property
    def good(self) -> bool:
        """No difference but a few near ties, and the drafter was never disabled."""
        few = text_equality.few_enough(len(self.near), self.compared, self.every)
        return few and not self.wrong and not self.disabled


@dataclass(frozen=True, slots=True)
class Setting:
    """Prompts and sampling. `batch` above 1: a ragged batch with arrivals, departures and preemption."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    batch: int = 1
    ties: bool = True  # False: float64 or a batch-invariant backend, where no near tie is allowed

    def of(self, index: int) -> SamplingParams:
        return replace(self.params, seed=(self.params.seed or 0) + index)


def compare(
    loaded: Loaded,
    names: Sequence[str],
    setting: Setting,
    *,
    against: str | None = None,
    say: Progress = lambda _: None,
) -> Iterator[Comparison]:
    """Transformers first if asked for, then every recipe, then the oracle."""
    alone = replace(setting, batch=1)
    plain = _answers(LLM(loaded, PLAIN, config=EngineConfig(max_num_seqs=1)), alone, PLAIN, say)
    if against == "transformers":
        yield _compared(loaded, setting, PLAIN, "transformers", plain, _transformers(loaded, setting, say))
    elif against is not None:
        raise OptionError(f"cannot compare against {against!r}\nhint: 'transformers'")
    wanted = [r.output for r in plain]
    drafter = NoisyOracle(dict(zip(setting.prompts, wanted, strict=True)), loaded.config.vocab_size, right=0.7)
    oracle = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(4, 8))
    for name in (*names, ORACLE):
        llm = _open(loaded, oracle if name == ORACLE else name, setting)
        got = _answers(llm, setting, name, say)
        why = not_compared(llm.recipe, setting.params.temperature)
        found = _compared(loaded, setting, name, PLAIN, got, None if why else wanted)
        yield replace(found, why=why, lossless=llm.recipe.lossless)


def _open(loaded: Loaded, recipe: str | Recipe, setting: Setting) -> LLM:
    options = following(recipe, setting.params.temperature) if isinstance(recipe, str) else {}
    config = EngineConfig(max_num_seqs=setting.batch)
    if setting.batch > 1:
        longest = sorted((len(p) + setting.params.max_tokens for p in setting.prompts), reverse=True)
        entries = max(sum(longest[: setting.batch]) // 3, longest[0] + 64)  # too few on purpose: requests are preempted
        config = replace(config, max_cache_tokens=entries, max_prefill_tokens=256)
    return LLM(loaded, recipe, config=config, **options)


def _answers(llm: LLM, setting: Setting, name: str, say: Progress) -> list[Request]:
    requests = [llm.request(p, setting.of(i)) for i, p in enumerate(setting.prompts)]
    if setting.batch > 1:
        _crowd(llm, setting, requests, name, say)
        return requests
    for i, request in enumerate(requests):
        say(f"{name}: {i + 1} of {len(requests)}")
        llm.engine.add(request)
        while not request.finished:
            llm.engine.step()
    return requests


def _crowd(llm: LLM, setting: Setting, requests: list[Request], name: str, say: Progress) -> None:
    """Arrivals two rounds apart; after every third, another request arrives and is cancelled five rounds later."""
    waiting = list(requests)
    leaving: dict[int, Request] = {}
    turn = 0
    while waiting or llm.engine.has_work:
        if waiting and turn % 2 == 0:
            llm.engine.add(waiting.pop(0))
            if len(waiting) % 3 == 0:
                guest = llm.request(setting.prompts[len(waiting)], replace(setting.params, seed=10**6 + turn))
                llm.engine.add(guest)
                leaving[turn + 5] = guest
        if turn in leaving:
            llm.engine.cancel(leaving[turn])
        llm.engine.step()
        turn += 1
        say(f"{name}: {sum(r.finished for r in requests)} of {len(requests)}")


def _compared(
    loaded: Loaded,
    setting: Setting,
    name: str,
    against: str,
    got: Sequence[Request],
    wanted: Sequence[Sequence[int]] | None,
) -> Comparison:
    """`wanted` is None where texts are not compared: then only rounds are counted."""
    found = Comparison(name, against, answers=len(got), every=text_equality.tokens_per_tie(loaded.info.backend))
    for i, request in enumerate(got):
        s = request.stats
        found.emitted += len(request.output)
        found.passes += s.target_passes
        found.rounds = [a + b for a, b in zip(found.rounds, (s.rounds_all, s.rounds_some, s.rounds_none), strict=True)]
        found.preempted += s.preempted
        found.disabled += s.disabled is not None
        if wanted is None:
            continue
        texts = request.prompt, request.output, wanted[i]
        apart = text_equality.difference(runner_of(loaded), *texts, setting.of(i))
        found.compared += len(wanted[i]) if apart is None else apart.position + 1
        if apart is None:
            found.identical += 1
        else:
            (found.near if apart.near and setting.ties else found.wrong).append((i, apart))
    return found


def _transformers(loaded: Loaded, setting: Setting, say: Progress) -> list[list[int]]:
    """The same weights in transformers' own class, decoded by its own generate."""
    if setting.params.temperature:
        raise OptionError("transformers uses other random numbers\nhint: compare against it with --temperature 0")
    from draftwood.bench.spec.peers.transformers import generate, model_of

    model, most = model_of(loaded.name, loaded.info.dtype, loaded.info.device), setting.params.max_tokens
    answers: list[list[int]] = []
    for i, prompt in enumerate(setting.prompts):
        say(f"transformers: {i + 1} of {len(setting.prompts)}")
        answers.append(generate(model, prompt, most, loaded.config.eos_token_ids, do_sample=False))
    return answers
