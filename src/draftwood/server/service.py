"""Service: a model with its recipes behind a bridge, and what the server says about itself."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from draftwood._version import __version__
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import DraftwoodError, EngineError, OptionError
from draftwood.grammar import Matching, compiled, json_schema, regex
from draftwood.server.ask import Ask, Mailbox
from draftwood.server.asked import Asked, Speculation, refused
from draftwood.server.bridge import Bridge, Busy
from draftwood.server.errors import ApiError

if TYPE_CHECKING:
    from draftwood.llm import LLM

log = logging.getLogger("draftwood")

PLAIN = "autoregressive"
_MEASURED_TOKENS = 24


@dataclass(slots=True)
class Group:
    """All sequences of one HTTP request."""

    asks: list[Ask]
    llm: "LLM"
    num_prompt_tokens: int


class Service:
    """`recipes`: name in requests -> recipe with its options; the default first."""

    def __init__(
        self,
        llm: "LLM",
        bridge: Bridge,
        recipes: Sequence[str],
        *,
        model_names: Sequence[str] = (),
        timeout: float | None = None,
    ) -> None:
        self.first, self.bridge, self.recipes, self.timeout = llm, bridge, tuple(recipes), timeout
        self.model_names = tuple(model_names) or (llm.loaded.name,)
        self.plain_tokens_per_second: float | None = None
        # Apart from other work: a grammar that takes long to compile holds up grammars alone.
        self._grammars = ThreadPoolExecutor(1, "draftwood-grammar")
        self.unavailable: dict[str, str] = {}  # recipes that could not be opened, and why
        self.ready = False

    @property
    def default_recipe(self) -> str:
        return self.recipes[0]

    @property
    def offered(self) -> tuple[str, ...]:
        """What requests may name; plain decoding always."""
        found = self.recipes if PLAIN in self.recipes else (*self.recipes, PLAIN)
        return tuple(name for name in found if name not in self.unavailable)

    async def start(self, measure: bool = True) -> None:
        """Start the engine thread and open all recipes: opened later, one would make the requests of others wait. `measure`:
        how fast plain decoding is."""
        self.bridge.start()
        for name in self.recipes:
            try:
                await self.bridge.llm(name)
            except DraftwoodError as error:
                log.warning("the recipe %s is not offered: %s", name, error)
                self.unavailable[name] = str(error)
        if measure:
            self.plain_tokens_per_second = await self._measured()
        self.ready = True

    async def _measured(self) -> float | None:
        plain = await self.bridge.llm(PLAIN)
        prompt = plain.tokenizer.encode("The quick brown fox", special=True)

        def run() -> float | None:
            options: dict[str, Any] = {"ignore_eos": True, "min_tokens": _MEASURED_TOKENS}
            plain.generate(prompt, max_tokens=2)
            start = perf_counter()
            result = plain.generate(prompt, max_tokens=_MEASURED_TOKENS, **options)
            return result.num_tokens / (perf_counter() - start) if result.num_tokens else None

        try:
            return await self.bridge.call(run)
        except DraftwoodError as error:  # a model whose context is too short for it
            log.info("plain decoding was not measured: %s", error)
            return None

    def info(self) -> dict[str, Any]:
        llm = self.first
        return {
            "model": self.model_names[0],
            "backend": llm.loaded.info.arithmetic,
            "device": str(llm.device),
            "recipes": list(self.offered),
            "default_recipe": self.default_recipe,
            "lossless": {name: self._lossless(name) for name in self.offered},
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "max_model_len": self.max_model_len,
            "version": __version__,
        }

    def _lossless(self, name: str) -> bool:
        from draftwood import recipes

        opened = self.bridge.llms.get(name)
        if opened is not None:
            return opened.recipe.lossless
        paper = recipes.paper(name)
        return paper.lossless and not (paper.lossy_with and paper.lossy_with in recipes.parted(name)[1])

    @property
    def max_model_len(self) -> int:
        longest = self.first.runner.info.max_positions
        config = self.first.config
        return min(config.max_model_len or longest, config.max_cache_tokens or longest, longest)

    def check_model(self, name: str) -> None:
        if name not in self.model_names:
            known = ", ".join(self.model_names)
            raise ApiError(404, f"no model {name[:80]!r}\nhint: {known}", param="model", code="model_not_found")

    def recipe_of(self, spec: Speculation) -> str:
        """The recipe of a request; ApiError 400 if it is not offered or cannot be limited like that."""
        if not spec.enabled:
            for name in ("recipe", "depth", "nodes", "budget"):
                if getattr(spec, name) is not None:
                    raise _wrong(name, f"speculation.{name} with enabled: false", "leave one of them out")
            return PLAIN
        name = spec.recipe or self.default_recipe
        if name in self.unavailable:
            raise _wrong("recipe", f"the recipe {name} cannot be opened: {self.unavailable[name]}", "another recipe")
        if name not in self.offered:
            raise _wrong("recipe", f"no recipe {name[:80]!r}", f"one of {', '.join(self.offered)}")
        for key in ("depth", "nodes"):
            self._check_limit(name, key, getattr(spec, key))
        return name

    def _check_limit(self, recipe: str, key: str, asked: int | None) -> None:
        """A recipe without such an option cannot be limited, and no request may ask for more than the recipe drafts."""
        if asked is None:
            return
        from draftwood import recipes
        from draftwood.option_parsing import converted

        base, words = recipes.parted(recipe)
        known = recipes.options(base)
        if key not in known:
            raise _wrong(key, f"the recipe {recipe} has no {key}", "leave it out, or choose another recipe")
        chosen = converted(base, recipes.load(base).build, known, words)
        most = chosen.get(key, known[key].default)
        if isinstance(most, int) and asked > most:
            raise _wrong(key, f"{asked} is more than the recipe {recipe} drafts", f"at most {most}")

    async def submit(self, asked: Asked, tenant: str) -> Group:
        """Sequences of a request, queued. `bridge.enter` came before."""
        recipe = self.recipe_of(asked.speculation)
        try:
            llm = await self.bridge.llm(recipe)
        except (Busy, EngineError):
            raise
        except DraftwoodError as error:  # for example, no heads ship for this model
            raise _wrong("recipe", f"the recipe {recipe} cannot be opened: {error}", "another recipe") from None
        mailbox = Mailbox(asked.n * len(asked.prompts))
        pool = None if asked.grammar is None else self._grammars
        run = asyncio.get_running_loop().run_in_executor
        asks = await run(pool, self._asks, asked, llm, recipe, tenant, mailbox)
        try:
            await self.bridge.submit(asks)
        except OptionError as error:
            raise refused(error) from None
        except asyncio.CancelledError:  # the client has gone
            self.bridge.cancel(asks, "disconnected")
            raise
        return Group(asks, llm, sum(len(ask.request.prompt) for ask in asks if ask.follows is None))

    def _asks(self, asked: Asked, llm: "LLM", recipe: str, tenant: str, mailbox: Mailbox) -> list[Ask]:
        """In a thread of its own: tokenisers and grammars take their time."""
        spec, asks = asked.speculation, list[Ask]()
        grammar = self._grammar(llm, asked)
        limits = {"max_draft_depth": spec.depth, "max_draft_nodes": spec.nodes, "max_draft_tokens": spec.budget}
        seconds = self.timeout if asked.timeout is None else asked.timeout
        deadline = None if seconds is None else monotonic() + seconds
        for prompt in asked.prompts:
            ids = self._prompt(llm, prompt, asked.chat)
            self._check_room(len(ids), asked)
            leader: Ask | None = None
            for i in range(asked.n):
                params = asked.params_of(i, self.max_model_len - len(ids), tenant, grammar)
                request = self._request(llm, ids, replace(params, **limits))
                ask = Ask(request, recipe, mailbox, len(asks), deadline, spec.rounds, leader)
                leader = leader or ask
                asks.append(ask)
        return asks

    def _check_room(self, prompt_tokens: int, asked: Asked) -> None:
        """ApiError 400 if prompt and answer do not fit the context. A shorter answer than was asked for would look like one
        that the caller's own limit cut."""
        most, wanted = self.max_model_len, asked.max_tokens
        if prompt_tokens + (wanted or 1) <= most:
            return
        answer = f" and {wanted} of the answer" if wanted else ""
        param = ("messages" if asked.chat else "prompt") if prompt_tokens >= most else "max_tokens"
        raise ApiError(
            400,
            f"this model's context holds {most} tokens, {prompt_tokens} of the prompt{answer} are asked for\n"
            f"hint: {'a shorter prompt' if prompt_tokens >= most else f'max_tokens of at most {most - prompt_tokens}'}",
            param=param,
            code="context_length_exceeded",
        )

    def _prompt(self, llm: "LLM", prompt: Any, chat: bool) -> list[int]:
        try:
            if chat:
                return llm.chat_prompt(prompt)
            return llm.tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else prompt
        except DraftwoodError as error:
            raise ApiError(400, str(error), param="messages" if chat else "prompt", code="invalid_value") from None

    def _grammar(self, llm: "LLM", asked: Asked) -> Matching | None:
        """Compiled once; each sequence forks it."""
        if asked.grammar is None:
            return None
        kind, given = asked.grammar
        param = "structured_outputs" if kind == "regex" else "response_format"
        try:
            text = regex(given) if kind == "regex" else json_schema(given)
            config = llm.loaded.config
            return compiled(text, llm.tokenizer, config.vocab_size, config.eos_token_ids)
        except OptionError as error:
            raise ApiError(400, str(error), param=param, code="unsupported_grammar") from None

    def _request(self, llm: "LLM", ids: list[int], params: SamplingParams) -> Any:
        try:
            return llm.request(ids, params)
        except OptionError as error:
            raise refused(error) from None


def service_of(
    llm: "LLM", recipes: Mapping[str, str] | Sequence[str], *, max_outstanding: int = 256, **options: Any
) -> Service:
    """A service on a model that is open with its default recipe."""
    from draftwood.server.bridge import opener

    names = dict(recipes) if isinstance(recipes, Mapping) else {name: name for name in recipes}
    bridge = Bridge(opener(llm, {**{PLAIN: PLAIN}, **names}), max_outstanding=max_outstanding)
    return Service(llm, bridge, list(names), **options)


def _wrong(key: str, message: str, hint: str) -> ApiError:
    return ApiError(
        400, f"speculation.{key}: {message}\nhint: {hint}", param=f"speculation.{key}", code="invalid_value"
    )
