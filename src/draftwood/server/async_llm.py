"""AsyncLLM: LLM for asyncio, on the bridge that the server uses. It needs no package beyond those of LLM."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Any

from draftwood.errors import EngineError, OptionError
from draftwood.llm import LLM, Params
from draftwood.prompts import Conversation
from draftwood.results import Chunk, Prompt, Result
from draftwood.server.ask import Ask, Mailbox
from draftwood.server.bridge import Bridge, opener


class AsyncLLM:
    """Many tasks may ask at once: their requests share every round. A task that is cancelled takes its request with it.

    async with AsyncLLM("smollm2") as llm:
        results = await asyncio.gather(*(llm.generate(prompt) for prompt in prompts))

    `recipes`: more recipes, which `recipe=` of a request may name; each opens at its first use on the same weights.
    """

    def __init__(
        self, model: Any = "smollm2", recipe: str = "auto", *, recipes: Sequence[str] = (), **options: Any
    ) -> None:
        self.llm = model if isinstance(model, LLM) else LLM(model, recipe, **options)
        self.recipe = self.llm.recipe_name
        names = {name: name for name in (self.recipe, *recipes)}
        self._bridge, self._names = Bridge(opener(self.llm, names)), names

    async def __aenter__(self) -> "AsyncLLM":
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        recipe: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Result:
        """Continue one prompt. After `timeout` seconds the result ends as it is, "cancelled"."""
        asks, llm = await self._submitted(prompt, params, recipe, timeout, options)
        async with aclosing(self._bridge.follow(asks)) as updates:  # type: ignore[type-var]
            async for _ in updates:
                pass
        first, *more = (llm.result_of(ask.request, prompt, _seconds(ask)) for ask in asks)
        return replace(first, more_samples=tuple(more))

    async def stream(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        recipe: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[Chunk]:
        """Tokens as rounds finish; the last chunk carries the result. Closing the iterator cancels the request."""
        asks, llm = await self._submitted(prompt, params, recipe, timeout, options, single=True)
        request = asks[0].request
        async with aclosing(self._bridge.follow(asks)) as updates:  # type: ignore[type-var]
            async for update in updates:
                if update.finished:
                    result = llm.result_of(request, prompt, _seconds(asks[0]))
                    yield Chunk(update.pieces, request.finish_reason, request.finish_detail, result)
                elif update.pieces:
                    yield Chunk(update.pieces, None)

    async def chat(self, messages: Conversation, params: Params | None = None, **options: Any) -> Result:
        """Answer a conversation."""
        return await self.generate(await asyncio.to_thread(self.llm.chat_prompt, messages), params, **options)

    async def close(self, drain: float = 0.0) -> None:
        """Cancel what runs, after `drain` seconds, and end the engine thread."""
        await self._bridge.close(drain)

    def _start(self) -> None:
        if not self._bridge.alive:
            if self._bridge.refusing:
                raise EngineError(f"this AsyncLLM takes no more requests: {self._bridge.refusing}")
            self._bridge.start()

    async def _submitted(
        self,
        prompt: Prompt,
        params: Params | None,
        recipe: str | None,
        timeout: float | None,
        options: dict[str, Any],
        *,
        single: bool = False,
    ) -> tuple[list[Ask], LLM]:
        name = self.recipe if recipe is None else recipe
        if name not in self._names:
            raise OptionError(f"recipe cannot be {name!r} here\nhint: AsyncLLM(..., recipes=[{name!r}])")
        self._start()
        llm = await self._bridge.llm(name)
        requests = await asyncio.to_thread(llm.requests, prompt, params, options)
        if single and len(requests) > 1:
            raise OptionError(f"a stream has one sample, n is {len(requests)}\nhint: leave out n, or use generate")
        deadline, mailbox = None if timeout is None else monotonic() + timeout, Mailbox(len(requests))
        asks: list[Ask] = []
        for i, request in enumerate(requests):
            asks.append(Ask(request, name, mailbox, i, deadline, follows=asks[0] if asks else None))
        try:
            await self._bridge.submit(asks)
        except asyncio.CancelledError:
            self._bridge.cancel(asks, "cancelled")
            raise
        return asks, llm


def _seconds(ask: Ask) -> float:
    return 0.0 if ask.ended_at is None else ask.ended_at - ask.asked_at
