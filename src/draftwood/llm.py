"""LLM: a model, a recipe and an engine behind three methods, for scripts and notebooks.

It may be used from several threads: each thread that waits for a token runs the next round for all of them.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NoReturn, overload

import torch

from draftwood import recipes
from draftwood.controllers.costs.cost import CostModel
from draftwood.core.config import EngineConfig
from draftwood.core.protocols import Recorder
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.source_names import source_names
from draftwood.drafters.retrieval.datastore import open_store
from draftwood.drafters.superposed.beam import softmax
from draftwood.drafters.superposed.completions import complete
from draftwood.drafters.superposed.ngrams import StoreCounts
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.engine.engine import Engine
from draftwood.engine.shared_engine import Running, SharedEngine
from draftwood.errors import OptionError
from draftwood.grammar import GrammarText, Matching, compiled
from draftwood.models.loading.load import Loaded, loaded_on
from draftwood.progress import progress_bar
from draftwood.prompts import Conversation, as_list, messages_of, split_conversations, split_prompts, token_ids
from draftwood.results import (
    Alternative,
    Alternatives,
    Chunk,
    Logprob,
    Piece,
    PieceReader,
    Prompt,
    Result,
    logprobs_of,
    pieces_of,
)
from draftwood.runners.open import runner_of
from draftwood.sizing.choose_drafter import SLOW

__all__ = [
    "LLM",
    "Alternative",
    "Alternatives",
    "Chunk",
    "Conversation",
    "Logprob",
    "Params",
    "Piece",
    "Prompt",
    "Result",
]

log = logging.getLogger("draftwood")

Params = SamplingParams | Mapping[str, Any]
Several = Params | Sequence[Params] | None  # for all prompts, or one for each


class LLM:
    """`recipe` is a name (with its options as keywords) or a Recipe. A lossy recipe given by name is logged as such. Fields
    of EngineConfig, such as `max_model_len`, may be keywords, too. The device "auto" is a GPU if there is one, else the CPU,
    and for a loaded model the one it is on."""

    def __init__(
        self,
        model: "str | os.PathLike[str] | Loaded" = "smollm2",
        recipe: str | Recipe = "auto",
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        settings = {field.name: options.pop(field.name) for field in fields(EngineConfig) if field.name in options}
        _check_arguments(model, recipe, options)
        self.loaded = loaded_on(model if isinstance(model, Loaded) else os.fspath(model), dtype=dtype, device=device)
        self.device = self.loaded.info.device
        self.config = replace(EngineConfig() if config is None else config, **settings)
        self.tokenizer, self.runner = self.loaded.tokenizer, runner_of(self.loaded, self.config.batch_invariant)
        self.recipe_name = recipe if isinstance(recipe, str) else type(recipe.drafter).__name__
        self.recipe = recipes.build(recipe, self.runner, **options) if isinstance(recipe, str) else recipe
        for note in self.recipe.notes:
            log.log(logging.WARNING if note.startswith(SLOW) else logging.INFO, "%s: %s", self.recipe_name, note)
        if (
            isinstance(recipe, str) and not self.recipe.lossless
        ):  # a Recipe object was built with its verifier on purpose
            named = ":".join((recipe, *(f"{key}={value}" for key, value in options.items())))
            log.warning("%s is LOSSY: its texts do not follow the model's distribution", named)
        self.source_names = source_names(self.recipe.drafter)  # of `Piece.source`, by number
        self.cost_model = CostModel()
        self._shared = SharedEngine(self._new_engine)
        self._ids = count()

    def record(self, *recorders: Recorder) -> None:
        """Show every round from now on to these too. Call it while nothing runs."""
        self.recipe = replace(self.recipe, record=(*self.recipe.record, *recorders))
        self.engine.recipe = self.recipe

    @property
    def engine(self) -> Engine:
        """The engine that runs now. A failed round replaces it by a fresh one."""
        return self._shared.engine

    def _new_engine(self) -> Engine:
        config, longest = self.config, self.runner.info.max_positions
        capacity = min(config.max_model_len or longest, longest)
        runner = self.runner.open(config.max_num_seqs, capacity, config.max_cache_tokens, self.recipe.needs.pools)
        return Engine(runner, self.recipe, cost_model=self.cost_model, config=config)

    @overload
    def generate(
        self, prompts: str, params: Params | None = None, *, progress: bool | None = None, **options: Any
    ) -> Result: ...
    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Several = None, *, progress: bool | None = None, **options: Any
    ) -> list[Result]: ...
    @overload
    def generate(
        self, prompts: Any, params: Several = None, *, progress: bool | None = None, **options: Any
    ) -> Any: ...
    def generate(
        self, prompts: Any, params: Several = None, *, progress: bool | None = None, **options: Any
    ) -> Result | list[Result]:
        """Continue one prompt or many. A prompt is a text or token ids (a list, or a numpy or torch array).

        `params` are SamplingParams or a dict, for all prompts or a list with one entry each; `options` replace fields of
        them. A flat list of token ids is one prompt. Any number of prompts is queued. `progress` shows a bar on stderr;
        None shows it on a terminal for many prompts.
        """
        each, alone = split_prompts(prompts)
        return self._answer(each, alone, params, progress, options)

    def stream(
        self, prompt: Any, params: Params | None = None, *, until: threading.Event | None = None, **options: Any
    ) -> Iterator[Chunk]:
        """Tokens as rounds finish. Closing the iterator cancels the request.

        Setting `until`, from a signal handler or another thread, ends the answer after the current round. The last chunk
        still comes, with the text so far as its result.
        """
        (only,) = self._samples(prompt if isinstance(prompt, str) else token_ids(prompt), params, options, stream=True)
        return self._stream(only, until)

    @overload
    def chat(
        self, messages: Conversation, params: Params | None = None, *, stream: Literal[False] = False, **options: Any
    ) -> Result: ...
    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Several = None,
        *,
        stream: Literal[False] = False,
        progress: bool | None = None,
        **options: Any,
    ) -> list[Result]: ...
    @overload
    def chat(
        self, messages: Conversation, params: Params | None = None, *, stream: Literal[True], **options: Any
    ) -> Iterator[Chunk]: ...
    def chat(
        self,
        messages: Any,
        params: Several = None,
        *,
        stream: bool = False,
        progress: bool | None = None,
        **options: Any,
    ) -> Result | list[Result] | Iterator[Chunk]:
        """Answer a conversation (a text or a list of messages) or a list of conversations, by the model's chat template.

        Earlier turns are still in the cache and are not computed again.
        """
        talks, alone = split_conversations(messages)
        if stream and not alone:
            raise OptionError(f"a stream answers one conversation, got {len(talks)}\nhint: leave out stream")
        prompts: list[Prompt] = [self.chat_prompt(talk) for talk in talks]
        if stream:
            if isinstance(params, Sequence):
                raise OptionError(f"one conversation, but {len(params)} sampling params\nhint: give one")
            return self.stream(prompts[0], params, **options)
        return self._answer(prompts, alone, params, progress, options)

    def chat_prompt(self, messages: Conversation) -> list[int]:
        """A conversation as token ids, by the model's own template. Text content parts are joined by line feeds."""
        return self.tokenizer.encode_chat(messages_of(messages))

    def alternatives(
        self,
        prompt: Any,
        k: int = 3,
        *,
        max_tokens: int = 10,
        candidates: int | None = None,
        temperature: float | None = None,
        alpha: float = 0.54,
        store: str | os.PathLike[str] | None = None,
    ) -> Alternatives:
        """At most `k` different completions of one prompt for about the price of one, the best first.

        LOSSY, whatever the recipe: all of them read the same passes, which see mixtures of their tokens, so none is a sample
        of the model. Texts get worse with their length: about 10 tokens are useful. `store`: a datastore whose n-grams weigh
        `alpha` in the choice of tokens; without one those of the prompt do. `candidates`, `temperature`: how many tokens of
        each pass are looked at, and how sharply; None takes the published numbers.
        """
        superposition = Superposition(k, candidates, temperature, alpha)
        counts = None if store is None else StoreCounts(open_store(Path(store), self.runner))
        given = prompt if isinstance(prompt, str) else token_ids(prompt)
        request = self.request(given, SamplingParams(max_tokens=max_tokens))
        self.engine.check(request)
        room = self.runner.info.max_positions - len(request.prompt)
        start = perf_counter()
        runner = self.runner.open(1, len(request.prompt) + min(max_tokens, room))
        beam, passes = complete(runner, request.prompt, superposition, min(max_tokens, room), request.ended_by, counts)
        drafts, seconds = beam.best(), perf_counter() - start
        found: list[Alternative] = []
        for draft, share in zip(drafts, softmax([draft.score for draft in drafts]), strict=True):
            answer = self.request(given, request.params)  # turns tokens into text, as any answer's
            answer.accept(draft.tokens, [-1] * len(draft.tokens))
            answer.finish("length")
            assert answer.finish_reason is not None
            found.append(Alternative(answer.settled, draft.tokens, draft.score, share, answer.finish_reason))
        return Alternatives(given, len(request.prompt), tuple(found), passes, seconds, self.loaded.info.backend)

    def request(self, prompt: Prompt, params: SamplingParams) -> Request:
        """A request as `generate` makes it, for callers that add to the engine themselves."""
        params = self._tokenised(params)
        ids = self.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else token_ids(prompt)
        if not ids and self.tokenizer.bos_token_id is not None:
            ids = [self.tokenizer.bos_token_id]  # an empty prompt starts a text where a start token exists
        return Request(
            id=next(self._ids),
            prompt=ids,
            params=params,
            vocab_size=self.loaded.config.vocab_size,
            eos=self.loaded.config.eos_token_ids,
            text=self.tokenizer.detokenizer(),
        )

    def _answer(
        self, prompts: list[Prompt], alone: bool, params: Several, progress: bool | None, options: dict[str, Any]
    ) -> Result | list[Result]:
        several = isinstance(params, Sequence)
        if several and (alone or len(params) != len(prompts)):
            said = "one prompt" if alone else f"{len(prompts)} prompts"
            raise OptionError(f"{said}, but {len(params)} sampling params\nhint: give one for all, or one for each")
        each = list(params) if several else [params] * len(prompts)
        groups = [self._samples(prompt, chosen, options) for prompt, chosen in zip(prompts, each, strict=True)]
        samples = [sample for group in groups for sample in group]
        with progress_bar(len(samples), progress) as advance:
            self._shared.run(samples, advance)
        results = [self._result(first, tuple(map(self._result, more))) for first, *more in groups]
        return results[0] if alone else results

    def _samples(self, prompt: Prompt, params: Any, options: dict[str, Any], *, stream: bool = False) -> list[Running]:
        """Requests for one prompt, checked but not added: a bad option is refused before any token."""
        made = self.requests(prompt, params, options)
        if stream and len(made) > 1:
            raise OptionError(f"a stream has one sample, n is {len(made)}\nhint: leave out n, or use generate")
        self.engine.check(made[0])
        return [Running(each, prompt) for each in made]

    def requests(self, prompt: Prompt, params: Any, options: Mapping[str, Any]) -> list[Request]:
        """The samples of one prompt, `n` of them, as `generate` makes them."""
        chosen = self._tokenised(self._params(params, dict(options)))
        seeds = [None if chosen.seed is None else chosen.seed + i for i in range(chosen.n)]
        return [self.request(prompt, replace(chosen, n=1, seed=seed)) for seed in seeds]

    def _params(self, params: Any, options: dict[str, Any]) -> SamplingParams:
        if isinstance(params, Mapping):
            if not all(isinstance(key, str) for key in params):
                raise OptionError(f"params cannot be {params!r}\nhint: names and values: {{'temperature': 0.7}}")
            params, options = None, {**params, **options}
        elif not (params is None or isinstance(params, SamplingParams)):
            raise OptionError(f"params cannot be {params!r}\nhint: SamplingParams(temperature=0.7), or a dict like it")
        words = options.get("bad_words")
        if isinstance(words, str):
            raise OptionError(f"bad_words cannot be {words!r}\nhint: a list: [{words!r}]")
        if isinstance(words, Sequence) and any(isinstance(w, str) for w in words):
            options = {**options, "bad_words": [ids for w in words for ids in self.tokenizer.spellings(w)]}
        if "prediction" in options:
            options = {**options, "prediction": as_list(options["prediction"])}
        return SamplingParams(**options) if params is None else replace(params, **options)

    def _tokenised(self, params: SamplingParams) -> SamplingParams:
        """With a predicted text as token ids, which is what drafters compare, and a grammar that is compiled. One that is
        compiled already is forked: it walks along one sequence."""
        if isinstance(params.grammar, GrammarText):
            config = self.loaded.config
            made = compiled(params.grammar, self.tokenizer, config.vocab_size, config.eos_token_ids)
            params = replace(params, grammar=made)
        elif isinstance(params.grammar, Matching):
            params = replace(params, grammar=params.grammar.fork())
        if not isinstance(params.prediction, str):
            return params
        return replace(params, prediction=tuple(self.tokenizer.encode(params.prediction)))

    def _stream(self, running: Running, until: threading.Event | None) -> Iterator[Chunk]:
        reader, r = PieceReader(), running.request
        with closing(self._shared.rounds(running)) as rounds:
            for _ in rounds:
                if until is not None and until.is_set():
                    self._shared.cancel([running])
                pieces = reader.read(r, self.source_names)
                if pieces or r.finished:
                    result = self._result(running) if r.finished else None
                    yield Chunk(pieces, r.finish_reason, r.finish_detail, result)
                    if result is not None:
                        return

    def _result(self, running: Running, more_samples: tuple[Result, ...] = ()) -> Result:
        return self.result_of(running.request, running.prompt, running.seconds, more_samples)

    def result_of(self, r: Request, prompt: Prompt, seconds: float, more_samples: tuple[Result, ...] = ()) -> Result:
        """Of a finished request."""
        assert r.finish_reason is not None
        return Result(
            prompt=prompt,
            num_prompt_tokens=len(r.prompt),
            text=r.settled,
            token_ids=tuple(r.output),
            pieces=pieces_of(r, self.source_names),
            source_names=self.source_names,
            finish_reason=r.finish_reason,
            finish_detail=r.finish_detail,
            error=r.error,
            logprobs=logprobs_of(r, self.tokenizer.token_text),
            seed=r.seed,
            recipe=self.recipe_name,
            lossless=self.recipe.lossless,
            stats=r.stats,
            seconds=seconds,
            backend=self.loaded.info.arithmetic,
            notes=self.notes_of(r),
            more_samples=more_samples,
        )

    def notes_of(self, request: Request) -> tuple[str, ...]:
        unused = bool(request.prediction) and not self.recipe.needs.prediction
        return (f"the recipe {self.recipe_name} drafts from no prediction, so it was not used",) if unused else ()

    def close(self) -> None:
        """Cancel what runs and refuse what comes."""
        self._shared.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        parts = [
            repr(self.loaded.name),
            f"recipe={self.recipe_name!r}",
            f"backend={self.loaded.info.backend!r}",
            f"max_model_len={self.engine.longest}",
            f"max_num_seqs={self.config.max_num_seqs}",
            *([] if self.recipe.lossless else ["LOSSY"]),
            *([f"notes={list(self.recipe.notes)}"] if self.recipe.notes else []),
            *(["closed"] if self.engine.closed else []),
        ]
        return f"LLM({', '.join(parts)})"

    def __reduce__(self) -> NoReturn:
        raise OptionError(
            "an LLM cannot be pickled or copied: it holds threads' locks and memory of native code\n"
            f"hint: open it in each process: LLM({self.loaded.name!r}, {self.recipe_name!r})"
        )


def _check_arguments(model: Any, recipe: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(model, str | os.PathLike | Loaded):
        raise OptionError(f"model cannot be {model!r}\nhint: a name such as 'smollm2', a path, or a loaded model")
    if isinstance(recipe, Recipe):
        for name, value in options.items():
            raise OptionError(
                f"{name}={value!r} cannot change a recipe that is already built\n"
                f"hint: give {name} to its parts, or name the recipe"
            )
    elif not isinstance(recipe, str):
        raise OptionError(
            f"recipe cannot be {recipe!r}\nhint: a name such as 'auto' (or 'autoregressive' for plain decoding), or a Recipe"
        )
