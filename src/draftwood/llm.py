"""LLM: a model, a recipe and an engine behind three verbs, for scripts and notebooks.

Safe from several threads: whoever waits for a token turns the engine's crank for everybody.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import Any, Literal, overload

import torch

from draftwood import recipes
from draftwood.cache.dense import DenseCache
from draftwood.controllers.cost import CostModel
from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import FinishReason, Request, Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.engine import Engine
from draftwood.errors import EngineError, OptionError
from draftwood.models.loading.load import Loaded, load

log = logging.getLogger("draftwood")

Prompt = str | Sequence[int]
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """The text one token added, and who wrote it: -1 the target itself, otherwise the drafter's number."""

    text: str
    token: int
    source: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to a stream. The last one carries the whole answer as its `result`."""

    pieces: tuple[Piece, ...]
    finish_reason: FinishReason | None
    result: "Result | None" = None

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.pieces)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer. `tokens` are its ids without the prompt; `pieces` say who wrote each."""

    prompt: Prompt
    prompt_tokens: int
    text: str
    tokens: tuple[int, ...]
    pieces: tuple[Piece, ...]
    finish_reason: FinishReason
    error: str | None
    logprobs: tuple[tuple[float, list[tuple[int, float]]], ...] | None
    seed: int
    recipe: str
    lossless: bool
    stats: Stats
    seconds: float
    backend: str = ""  # what computed: precision and level of instructions

    @property
    def tokens_per_pass(self) -> float:
        return len(self.tokens) / self.stats.target_passes if self.stats.target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds else 0.0


class LLM:
    """`recipe` is a name (with its options as keywords) or a Recipe of your own. A lossy one that is named is logged."""

    def __init__(
        self,
        model: str | Loaded = "smollm2",
        recipe: str | Recipe = "auto",
        *,
        dtype: str | torch.dtype = "auto",
        device: str = "cpu",
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        if options and not isinstance(recipe, str):
            name = next(iter(options))
            raise OptionError(
                f"{name}={options[name]!r} stands beside a recipe that is built, which would not heed it\n"
                f"hint: give {name} to its parts, or name the recipe"
            )
        self.loaded = load(model, dtype=dtype, device=device) if isinstance(model, str) else model
        self.tokenizer = self.loaded.tokenizer
        self.config = EngineConfig() if config is None else config
        self.recipe_name = recipe if isinstance(recipe, str) else type(recipe.drafter).__name__
        self.recipe = recipes.build(recipe, self.loaded.model, **options) if isinstance(recipe, str) else recipe
        if isinstance(recipe, str) and not self.recipe.lossless:  # who builds a Recipe has chosen its rule himself
            named = ":".join((recipe, *(f"{key}={value}" for key, value in options.items())))
            log.warning("%s is LOSSY: its texts do not follow the model's distribution", named)
        self.cost_model = CostModel()
        self.engine = Engine(
            self.loaded.model,
            self._cache(device),
            self.recipe,
            cost_model=self.cost_model,
            config=self.config,
            device=device,
        )
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}  # running
        self._leaving: deque[_Job] = deque()  # to be cancelled before the next round
        self._ids = count()

    def _cache(self, device: str) -> Any:
        model = self.loaded.model
        capacity = min(self.config.max_model_len or model.max_positions, model.max_positions)
        make = getattr(model, "make_cache", None)  # models that run elsewhere bring a cache of their own
        if make is not None:
            return make(self.config.max_num_seqs, capacity, self.config.max_cache_tokens)
        return DenseCache(
            model.cache_specs,
            slots=self.config.max_num_seqs,
            capacity=capacity,
            max_cache_tokens=self.config.max_cache_tokens,
            device=device,
        )

    @overload
    def generate(self, prompts: str, params: SamplingParams | None = None, **options: Any) -> Result: ...
    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None, **options: Any
    ) -> list[Result]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> Result | list[Result]:
        """Answer one prompt or many together, each with its own params if a list of them is given."""
        if isinstance(prompts, str):
            if isinstance(params, Sequence):
                raise OptionError(f"one prompt, but {len(params)} sampling params")
            return self._wait([self._job(prompts, self._params(params, options))])[0]
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise OptionError(f"{len(prompts)} prompts, but {len(each)} sampling params")
        jobs: list[_Job] = []
        for prompt, chosen in zip(prompts, each, strict=True):
            if isinstance(prompt, int):
                raise OptionError("a list of numbers is no list of prompts\nhint: wrap one prompt's ids: [[1, 2]]")
            jobs.append(self._job(prompt, self._params(chosen, options)))
        return self._wait(jobs)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        until: threading.Event | None = None,
        **options: Any,
    ) -> Iterator[Chunk]:
        """Tokens as rounds finish. Closing the iterator cancels the request.

        Setting `until`, from a signal handler or another thread, ends the answer after the current round; its last
        chunk still comes, with what is there as its result.
        """
        return self._stream(self._job(prompt, self._params(params, options)), until)

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Result: ...
    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> Iterator[Chunk]: ...
    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        **options: Any,
    ) -> Result | Iterator[Chunk]:
        """Answer a conversation. Rows of earlier turns are still in the cache and are not computed again."""
        job = self._job(self.chat_prompt(messages), self._params(params, options))
        return self._stream(job) if stream else self._wait([job])[0]

    def chat_prompt(self, messages: str | Sequence[Message]) -> list[int]:
        """A conversation as token ids, by the model's own template."""
        if not isinstance(messages, str) and not all(isinstance(m, Mapping) for m in messages):
            raise OptionError(
                'a conversation is a text or a list of messages\nhint: [{"role": "user", "content": "Hi"}]'
            )
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
        if not turns:
            raise OptionError("the conversation is empty\nhint: give at least one message")
        return self.tokenizer.encode_chat(turns)

    def _params(self, params: SamplingParams | None, options: dict[str, Any]) -> SamplingParams:
        words = options.get("bad_words")
        if isinstance(words, str):
            raise OptionError(f"bad_words cannot be {words!r}\nhint: a list: [{words!r}]")
        if words and any(isinstance(w, str) for w in words):
            options = {**options, "bad_words": [ids for w in words for ids in self._spellings(w)]}
        try:
            return SamplingParams(**options) if params is None else replace(params, **options)
        except TypeError as error:
            raise OptionError(f"{error}\nhint: {', '.join(SamplingParams.__slots__)}") from None

    def _spellings(self, word: str | Sequence[int]) -> list[Sequence[int]]:
        """A word's ids, at the start of a text and after a space."""
        if not isinstance(word, str):
            return [word]
        return [ids for w in (word, " " + word.lstrip()) if (ids := self.tokenizer.encode(w))]

    def request(self, prompt: Prompt, params: SamplingParams) -> Request:
        """A request as `generate` would make it, for those who turn the engine's crank themselves."""
        ids = self.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [self.tokenizer.bos_token_id]  # "continue from nothing" is a fair wish where a start token exists
        return Request(
            id=next(self._ids),
            prompt=ids,
            params=params,
            vocab_size=self.loaded.config.vocab_size,
            eos=self.loaded.config.eos_token_ids,
            text=self.tokenizer.detokenizer(),
        )

    def _job(self, prompt: Prompt, params: SamplingParams) -> "_Job":
        """A request that was looked at, so that nonsense is refused here and now, but not yet added."""
        request = self.request(prompt, params)
        self.engine.check(request)
        return _Job(request, prompt)

    def _start(self, job: "_Job") -> "_Job":
        with self._lock:
            self.engine.add(job.request)
            self._jobs[job.request.id] = job
            job.started = perf_counter()
        return job

    def _turn(self, job: "_Job") -> None:
        """One round for everybody, unless somebody else has finished this request meanwhile."""
        with self._lock:
            self._let_go()
            if job.request.finished:
                return
            if self.engine.closed:
                raise EngineError("this model was closed while a request was running")
            try:
                finished = self.engine.step()
            except BaseException:
                self.engine.close()  # its books may not balance any more; nobody may go on with it
                raise
            for request in finished:
                self._jobs.pop(request.id).stop()

    def _wait(self, jobs: "list[_Job]") -> list[Result]:
        started: list[_Job] = []
        try:
            for job in jobs:
                started.append(self._start(job))
            for job in jobs:
                while not job.request.finished:
                    self._turn(job)
        finally:
            self._cancel(started)
        return [self._result(job) for job in jobs]

    def _stream(self, job: "_Job", until: threading.Event | None = None) -> Iterator[Chunk]:
        given, shown = 0, 0
        r = self._start(job).request
        try:
            while True:
                self._turn(job)
                if until is not None and until.is_set():
                    self._cancel([job])
                visible = r.visible()
                pieces: list[Piece] = []
                while given < len(r.output) and (r.finished or r.marks[given] <= visible):
                    end = visible if r.finished and given == len(r.output) - 1 else min(r.marks[given], visible)
                    pieces.append(Piece(r.settled[shown:end], r.output[given], r.sources[given]))
                    given, shown = given + 1, max(shown, end)
                if pieces or r.finished:
                    yield Chunk(tuple(pieces), r.finish_reason, self._result(job) if r.finished else None)
                if r.finished:
                    return
        finally:
            self._cancel([job])

    def _cancel(self, jobs: "list[_Job]") -> None:
        """End what still runs. Never waits for the lock: Python may collect a forgotten stream, and so come here, in the
        middle of the very round that holds it. Whoever holds the lock lets go before the next round."""
        self._leaving.extend(job for job in jobs if not job.request.finished)
        if self._leaving and self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        while self._leaving:
            job = self._leaving.popleft()
            self.engine.cancel(job.request)
            self._jobs.pop(job.request.id, None)
            job.stop()

    def _result(self, job: "_Job") -> Result:
        r = job.request
        assert r.finish_reason is not None
        ends = [*r.marks[:-1], len(r.settled)][: len(r.marks)]
        starts = [0, *ends][: len(r.marks)]
        pieces = tuple(
            Piece(r.settled[a:b], token, source)
            for a, b, token, source in zip(starts, ends, r.output, r.sources, strict=True)
        )
        return Result(
            prompt=job.prompt,
            prompt_tokens=len(r.prompt),
            text=r.settled,
            tokens=tuple(r.output),
            pieces=pieces,
            finish_reason=r.finish_reason,
            error=r.error,
            logprobs=None if r.params.logprobs is None else tuple(r.logprobs),
            seed=r.params.seed,
            recipe=self.recipe_name,
            lossless=self.recipe.lossless,
            stats=r.stats,
            seconds=job.seconds,
            backend=self.loaded.backend,
        )

    def close(self) -> None:
        """Cancel what runs and refuse what comes."""
        with self._lock:
            self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Job:
    request: Request
    prompt: Prompt
    started: float = 0.0
    seconds: float = 0.0

    def stop(self) -> None:
        """The clock stops when the request ends, whoever noticed it."""
        self.seconds = self.seconds or perf_counter() - self.started
