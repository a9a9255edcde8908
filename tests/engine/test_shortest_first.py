"""Short requests run before long ones, nobody starves, and the text of a request depends on none of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.batch import Batch, Room
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.lengths import Lengths
from draftwood.engine.scheduler import FirstCome
from draftwood.engine.service import ROUNDS, WINDOWS, Service
from draftwood.engine.shortest_first import ShortestFirst
from draftwood.testing.runs import make_engine, serve
from ragged import PROMPTS, TARGET, alone, check_same_text, params
from rounds_of_a_scheduler import Rounds


def request(number: int, tokens: int = 50, prompt: int = 4, priority: int = 0) -> Request:
    return Request(number, [1] * prompt, SamplingParams(max_tokens=tokens, priority=priority), 9)


def recipe(make: Callable[[], Any] | None, name: str = "prompt_lookup") -> Recipe:
    from dataclasses import replace

    return replace(recipes.build(name, TARGET), scheduler=make)


# --- order


def test_a_new_request_runs_before_one_that_has_had_much_service() -> None:
    rounds = Rounds(ShortestFirst(together=1), slots=2)
    rounds.add(request(0, 1000))
    rounds.play(40)
    rounds.add(request(1, 5))
    assert rounds.play(5) == [[1]] * 5
    assert rounds.play(1) == [[0]] and rounds.ended == [1]


def test_first_come_makes_it_wait() -> None:
    """The twin."""
    rounds = Rounds(FirstCome(), slots=1)
    rounds.add(request(0, 1000))
    rounds.play(40)
    rounds.add(request(1, 5))
    assert rounds.play(5) == [[0]] * 5


def test_a_known_short_rest_goes_before_an_unknown_one() -> None:
    scheduler = ShortestFirst(together=1)
    for _ in range(8):
        scheduler.lengths.learn(done(30), 30)
    rounds = Rounds(scheduler, slots=3)
    rounds.add(request(0, 40))
    rounds.play(ROUNDS * WINDOWS + 1)
    assert scheduler.known[0].perceptible
    rounds.add(request(1, 400))
    assert rounds.play(1) == [[0]], "what is left of it is short, and that is known"


def done(tokens: int) -> Request:
    found = request(99, tokens)
    found.output += [1] * tokens
    return found


def test_stable_acceptance_makes_the_future_perceptible_and_drift_hides_it() -> None:
    own = Service(request(0), 0, 0.0, 10.0)
    for i in range(ROUNDS * WINDOWS):
        own.decode(0.1, 2, 20, 10)
        assert own.perceptible == (i + 1 == ROUNDS * WINDOWS)
    assert own.per_token == pytest.approx(0.05)
    for _ in range(ROUNDS):
        own.decode(0.1, 1, 20, 0)
    assert not own.perceptible


def test_priorities_come_first_in_both_schedulers() -> None:
    for scheduler in (FirstCome(), ShortestFirst()):
        rounds = Rounds(scheduler, slots=1)
        for number, priority in enumerate((1, 0, 2, 0)):
            rounds.add(request(number, 3, priority=priority))
        rounds.play(12)
        assert rounds.ended == [1, 3, 0, 2], type(scheduler).__name__


def test_without_slots_to_spare_one_is_given_up_only_where_that_gains_more_than_it_costs() -> None:
    for prompt_token, order in ((0.0, [[1]] * 3), (100.0, [[0]] * 3)):
        scheduler = ShortestFirst(prompt_token=prompt_token)
        for _ in range(8):
            scheduler.lengths.learn(done(900), 900)
        assert scheduler._trust == 1.0
        rounds = Rounds(scheduler, slots=1)
        rounds.add(request(0, 1000))
        rounds.play(40)
        rounds.add(request(1, 5))
        scheduler.prompt_token = prompt_token
        assert rounds.play(3) == order
        assert rounds.released == ([0] if not prompt_token else [])


def test_where_lengths_were_far_off_nobody_gives_up_a_slot_for_them() -> None:
    scheduler = ShortestFirst()
    for _ in range(8):
        scheduler.lengths.learn(done(900), 10)
    rounds = Rounds(scheduler, slots=1)
    rounds.add(request(0, 1000))
    rounds.play(40)
    rounds.add(request(1, 5))
    scheduler.prompt_token = 0.5
    assert scheduler._trust < 0.05 and rounds.play(3) == [[0]] * 3


def served_within(aging: float) -> int | None:
    """The round in which a long request gets on although short ones come without end."""
    rounds = Rounds(ShortestFirst(together=1, aging=aging), slots=4)
    rounds.add(request(0, 1000))
    rounds.play(60)
    for i in range(600):
        if i % 4 == 0:
            rounds.add(request(1 + i, 4))
        if rounds.play(1) == [[0]]:
            return i
    return None


def test_nobody_starves() -> None:
    at = served_within(aging=2.0)
    assert at is not None and at < 400


def test_who_was_promoted_waits_for_a_free_slot_and_gets_the_next_one() -> None:
    """Under lasting load all are promoted: if each took a slot from another, texts would be read over and over."""
    rounds = Rounds(ShortestFirst(aging=2.0), slots=2)
    waiting = [request(number, 30) for number in range(40)]
    for each in waiting:
        rounds.add(each)
    rounds.play(900)
    assert sorted(rounds.ended) == list(range(40))
    assert sum(each.stats.preempted for each in waiting) <= 2


def test_without_aging_somebody_does() -> None:
    """The twin."""
    assert served_within(aging=1e9) is None


def test_aging_ends_above_priorities() -> None:
    rounds = Rounds(ShortestFirst(together=1, aging=2.0), slots=4)
    rounds.add(request(0, 50, priority=1))
    for i in range(300):
        if i % 4 == 0:
            rounds.add(request(1 + i, 4))
        if rounds.play(1) == [[0]]:
            break
    else:
        pytest.fail("it never ran")


def test_every_request_is_served_once_and_nothing_is_left_behind() -> None:
    scheduler = ShortestFirst(together=2)
    rounds = Rounds(scheduler, slots=3)
    for number in range(12):
        rounds.add(request(number, 1 + 7 * number % 20))
        rounds.play(2)
    rounds.play(300)
    assert sorted(rounds.ended) == list(range(12))
    assert not scheduler.known and not scheduler.slots and scheduler.waiting == 0


# --- lengths


def test_lengths_follow_the_class_of_the_prompt_and_what_is_there_already() -> None:
    lengths = Lengths()
    assert lengths.remaining(request(0, 1000)) == 64
    for prompt, length in ((4, 10), (100, 200)):
        for _ in range(6):
            ended = request(0, 1000, prompt)
            ended.output += [1] * length
            lengths.learn(ended, 64)
    assert lengths.remaining(request(1, 1000, 5)) == 10 and lengths.remaining(request(1, 1000, 90)) == 200
    started = request(1, 1000, 5)
    started.output += [1] * 50
    assert lengths.remaining(started) == 150, "no answer to such a prompt became so long, others did"
    assert lengths.remaining(request(1, 7, 90)) == 7
    assert lengths.errors.share == pytest.approx((6 * 54 + 6 * 136) / (60 + 1200))


def test_the_errors_of_lengths_and_services_are_part_of_the_run() -> None:
    scheduler = ShortestFirst()
    rounds = Rounds(scheduler, slots=2)
    for number in range(6):
        rounds.add(request(number, 60))
    rounds.play(300)
    assert scheduler.lengths.errors.share is not None
    assert scheduler.service_errors.share is not None and scheduler.service_errors.share < 0.5


# --- the real engine


@pytest.mark.one_in(5)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("together", "slots"), [(2, 8), (None, 2)])
def test_texts_are_those_of_first_come_first_served(together: int | None, slots: int, temperature: float) -> None:
    plain = [r.output for r in alone(recipes.build("autoregressive", TARGET), temperature)]
    arrive = {i: 3 * i for i in range(8)}
    for make in (None, partial(ShortestFirst, together, rounds=1.0, aging=3.0)):
        engine = make_engine(TARGET, recipe(make), slots=slots, capacity=64)
        found = serve(engine, PROMPTS, params(temperature), arrive=arrive)
        assert [r.output for r in found] == plain
        assert all(r.stats.disabled is None for r in found)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_plain_decodings_in_a_ragged_batch_with_too_small_a_cache(temperature: float) -> None:
    check_same_text(recipe(partial(ShortestFirst, 3, rounds=1.0), "prompt_lookup"), temperature)
    drafts = "speculative_sampling:draft=first:3:verifier=match"
    check_same_text(recipe(partial(ShortestFirst, 3, rounds=1.0), drafts), temperature)


def test_a_scheduler_that_forgets_what_was_read_is_seen_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a request that comes back is said to be in the cache already."""
    real = ShortestFirst.next

    def careless(self: ShortestFirst, room: Room) -> Batch:
        from dataclasses import replace

        batch = real(self, room)
        return Batch(tuple(replace(w, done=w.request.num_known - 1, take=1) for w in batch.sequences))

    monkeypatch.setattr(ShortestFirst, "next", careless)
    engine = make_engine(TARGET, recipe(partial(ShortestFirst, 2)), slots=8, capacity=64)
    plain = [r.output for r in alone(recipes.build("autoregressive", TARGET), 0.0)]
    found = serve(engine, PROMPTS, params(0.0))
    assert [r.output for r in found] != plain


def test_first_come_preempts_the_youngest_of_the_last_priority() -> None:
    scheduler = FirstCome()
    rounds = Rounds(scheduler, slots=3)
    for number, priority in enumerate((0, 1, 1)):
        rounds.add(request(number, 9, priority=priority))
    rounds.play(1)
    slot = scheduler.preempt()
    assert slot is not None and scheduler.queue[0].id == 2
    rounds.add(request(3, 9, priority=1))
    rounds.add(request(4, 9))
    assert [r.id for r in scheduler.queue] == [4, 2, 3]
