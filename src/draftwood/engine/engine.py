"""Engine: owns the states of all parts and makes tokens for its requests, one round per `step`."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core.batch import Prefix, Room
from draftwood.core.common_prefix import common_prefix
from draftwood.core.config import EngineConfig
from draftwood.core.limit import CostEstimate
from draftwood.core.protocols import Recorder, Runner, Scheduler, Watcher
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.random import Keyed, Noise
from draftwood.core.verdict import Times
from draftwood.engine.drafting import admit_draft, free_controller
from draftwood.engine.interrupt import HeldInterrupt
from draftwood.engine.overlapped import Carried
from draftwood.engine.saved import PlainRounds
from draftwood.engine.saved_texts import SavedTexts
from draftwood.engine.scheduler import FirstCome
from draftwood.engine.step import step
from draftwood.errors import EngineError, OptionError


class Engine:
    """One target, one recipe, many requests. Not safe from two threads; SharedEngine is."""

    def __init__(
        self,
        runner: Runner,
        recipe: Recipe,
        *,
        cost_model: CostEstimate,
        config: EngineConfig | None = None,
        noise: Noise | None = None,
    ) -> None:
        recipe.check(runner)
        self.runner, self.recipe, self.cost_model = runner, recipe, cost_model
        self.info, self.device = runner.info, runner.info.device
        self.needs = recipe.needs  # asked for every round
        for spec in self.needs.pools:
            none = torch.zeros(0, dtype=torch.int64, device=runner.info.device)
            runner.read_pool(spec.name, none, none)  # an error now if the runner was opened without
        self.config = EngineConfig() if config is None else config
        self.noise: Noise = Keyed() if noise is None else noise
        self.scheduler: Scheduler = FirstCome() if recipe.scheduler is None else recipe.scheduler()
        slots = self.config.max_num_seqs
        self.drafter_state: Any = recipe.drafter.init(slots)
        self.controller_state: Any = recipe.controller.init(slots)
        self.failed_watchers: list[Watcher | Recorder] = []  # asked no more
        self.origin: dict[int, Tensor] = {}  # tap -> [slots, H]: features of the position that produced each root
        self.overlapped = recipe.loop is Loop.OVERLAPPED
        self.carried: dict[int, Carried] = {}  # slot -> what was drafted ahead for its next round
        self.disabled: dict[int, str] = {}  # slot -> why its request goes on without drafts
        self.unfreed: dict[int, str] = {}  # slot -> why the drafter did not free it
        self.slow_rounds = 0  # rounds in a row whose draft took far longer than the target's pass
        self.admitted: dict[int, Request] = {}  # by slot
        most = self.config.max_saved_tokens
        self.saved_texts = SavedTexts(
            runner, cost_model, runner.max_cache_tokens if most is None else most, self.config.max_prefill_tokens
        )
        self.plain_rounds = PlainRounds()
        self.totals = Times()
        self.rounds = 0
        self.closed = False
        self._live: dict[int, Request] = {}

    @property
    def longest(self) -> int:
        """Known tokens one request may have: the entries of a slot, or the model's positions if those are fewer."""
        return min(self.runner.capacity, self.info.max_positions)

    def check(self, request: Request) -> None:
        """OptionError with the reason if this engine can never run the request."""
        if self.closed:
            raise EngineError("this engine is closed")
        if not request.prompt:
            raise OptionError(
                "the prompt is empty\nhint: give at least one token, for example the beginning-of-sequence token"
            )
        wrong = [t for t in request.prompt if not isinstance(t, int) or not 0 <= t < self.info.vocab_size]
        if wrong:
            raise OptionError(f"prompt token {wrong[0]} is not in the vocabulary of {self.info.vocab_size}")
        most = self.longest if self.runner.spare is None else min(self.longest, self.runner.max_cache_tokens)
        if len(request.prompt) >= most:
            more = "" if most >= self.info.max_positions else ", or raise max_model_len or max_cache_tokens"
            raise OptionError(
                f"the prompt has {len(request.prompt)} tokens, this engine's context holds {most} with the answer\n"
                f"hint: shorten the prompt{more}"
            )
        request.params.check(self.info.vocab_size)

    def add(self, request: Request) -> None:
        """Queue a request. OptionError if it can never run, or if `max_num_waiting` others wait already."""
        self.check(request)
        if self.scheduler.waiting >= self.config.max_num_waiting:
            raise OptionError(
                f"{self.scheduler.waiting} requests are waiting already\nhint: try again later, or raise max_num_waiting"
            )
        self._live[request.id] = request
        self.scheduler.add(request)

    def cancel(self, request: Request) -> None:
        """End a request now; its slot is free for others at once."""
        if request.finished:
            return
        request.finish("cancelled")
        self.saved_texts.drop(request)
        slot = self.scheduler.drop(request)
        if slot is not None:
            self.release([slot])
        self._live.pop(request.id, None)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """One round for all requests that run; the requests that finished.

        An interrupt is held until the round has ended. An exception inside a round leaves cache and drafter in an unknown
        state, so it ends all requests and closes the engine.
        """
        with HeldInterrupt():
            try:
                finished = step(self)
                for request in finished:
                    self._live.pop(request.id, None)
                if not self._live:
                    self.runner.check_integrity()
            except BaseException as error:
                self._abandon(error)
                raise
        return finished

    def _abandon(self, error: BaseException) -> None:
        """End every request without touching cache or drafter, after a round that was cut off."""
        self.closed = True
        for request in self._live.values():
            if isinstance(error, Exception):
                request.finish("error", f"a round failed: {type(error).__name__}: {error}")
            else:
                request.finish("cancelled")
            self.scheduler.drop(request)
        self.saved_texts.held.clear()
        self._live.clear()

    def room(self) -> Room:
        """The slots and cache entries that the scheduler may give to requests now."""

        def admit(request: Request, free: list[int]) -> tuple[int, int]:
            known = request.known
            tenant = request.before
            slot = self.runner.prefer(known, free, tenant)
            most = admit_draft(self, slot, request)
            done = self.runner.admit(slot, known, most, before=tenant)
            self.admitted[slot] = request
            return slot, self.saved_texts.restore(slot, request, done, most)

        def prefix(request: Request, running: Collection[int]) -> Prefix:
            known, tenant = request.known, request.before
            present, held = self.runner.present(known, tenant)
            coming = 0
            for slot in running:
                other = self.admitted[slot]
                if other.params.tenant == request.params.tenant and other.num_known - self.runner.length(slot) > 1:
                    coming = max(coming, common_prefix(known, other.known))
            return Prefix(present, held, coming)

        def give_up(slot: int) -> None:
            self.saved_texts.save(slot, self.admitted[slot])
            self.release([slot])

        return Room(
            slots=self.config.max_num_seqs,
            max_prefill_tokens=self.config.max_prefill_tokens,
            spare=self.runner.spare,
            length=self.runner.length,
            admit=admit,
            release=give_up,
            prefix=prefix,
        )

    def release(self, slots: Sequence[int]) -> None:
        """Free slots in the cache and in all parts."""
        self.runner.free(slots)
        for slot in slots:
            self.admitted.pop(slot, None)
            self.carried.pop(slot, None)
            if self.disabled.pop(slot, None) is None:
                self.free_draft(slot)
        free_controller(self, slots)

    def free_draft(self, slot: int) -> None:
        """Free a slot of the drafter. Where it fails, it is asked again before the next request is admitted there."""
        self.unfreed.pop(slot, None)
        try:
            self.recipe.drafter.free(self.drafter_state, [slot])
        except Exception as error:
            self.unfreed[slot] = f"free: {error}"

    def close(self) -> None:
        """Cancel everything."""
        for request in list(self._live.values()):
            self.cancel(request)
        self.closed = True
