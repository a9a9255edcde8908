"""Runs recorded requests through an engine once more, in their order and with as many of them at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from draftwood.bench.trace.recorder import Recorder
from draftwood.bench.trace.records import Record, RoundRecord, loaded_params
from draftwood.bench.trace.trace import Recorded
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.engine import Engine

KNOWN_ENDS = ("eos", "stop_token", "max_tokens")  # which a request finds again without decoding its text


def params_of(recorded: Recorded) -> SamplingParams:
    """The recorded options, with an end where the recorded answer ended."""
    params = replace(loaded_params(recorded.asked), stop=(), logprobs=None)
    if recorded.ended is not None and recorded.ended.detail in KNOWN_ENDS:
        return params
    return replace(params, max_tokens=len(recorded.output), min_tokens=0)


def request_of(recorded: Recorded, vocab_size: int) -> Request:
    asked = recorded.asked
    return Request(asked.number, list(asked.prompt), params_of(recorded), vocab_size, eos=tuple(asked.eos))


def drive(
    engine: Engine, recorded: Sequence[Recorded], make: Callable[[Recorded], Request]
) -> tuple[list[Request], list[RoundRecord]]:
    """All requests to their ends, and the rounds they took. As many run at a time as did at most when they were recorded:
    the others wait, as they did in a queue, and the turns of a conversation for the turns before them."""
    rounds: list[RoundRecord] = []

    def keep(record: Record) -> None:
        if isinstance(record, RoundRecord):
            rounds.append(record)

    recorder = Recorder(keep)
    engine.recipe = replace(engine.recipe, record=(*engine.recipe.record, recorder))
    most = 1 + max((each.alongside for each in recorded), default=0)
    waiting, live, made = list(recorded), dict[int, Request](), dict[int, Request]()
    left = {each.asked.number for each in recorded}  # that have not ended
    while left:
        for each in list(waiting) if len(live) < most else ():
            if len(live) < most and left.isdisjoint(each.follows):
                waiting.remove(each)
                made[each.asked.number] = live[each.asked.number] = make(each)
                engine.add(live[each.asked.number])
        engine.step()
        for number in [number for number, request in live.items() if request.finished]:
            del live[number]
            left.remove(number)
    recorder.flush()
    return [made[each.asked.number] for each in recorded], rounds
