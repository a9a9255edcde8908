"""bench engine: decoding rounds by part, and the share outside the model."""

import pytest

from draftwood.bench.micro.engine import Case, Meter, due, measure, replay
from draftwood.core.sampling.params import SamplingParams
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.host_reads import as_if_on_a_device

PROMPTS = [(104, 101, 108), (111, 32, 104), (33, 34, 35), (1, 2, 3), (7, 8, 9)]


@pytest.fixture(scope="module")
def loaded(folder) -> Loaded:
    return load(str(folder))


def case(name: str = "autoregressive", temperature: float = 0.0, batch: int = 1) -> Case:
    return Case(name, name, SamplingParams(temperature=temperature, seed=0, max_tokens=8, ignore_eos=True), batch)


def test_every_prompt_is_due_once_in_full_batches_and_a_rest():
    for batch in (1, 2, 5, 8):
        parts = [part for i in range(5) if (part := due(PROMPTS, i, batch))]
        assert [p for part in parts for p in part] == PROMPTS
        assert all(len(part) == batch for part in parts[:-1])


def test_rounds_that_read_a_prompt_are_not_counted(loaded: Loaded):
    alone, together = measure(loaded, [case(), case(batch=5)], PROMPTS)
    assert alone.rounds == 5 * 7 and together.rounds == 7  # the first of 8 tokens comes with the prompt
    assert alone.tokens_per_pass == together.tokens_per_pass == 1


def test_overhead_is_what_target_and_draft_passes_leave_of_a_round(loaded: Loaded):
    greedy, drawn = measure(loaded, [case(), case(temperature=1.0)], PROMPTS)
    for cost in (greedy, drawn):
        assert cost.overhead is not None and cost.overhead.low is not None and cost.overhead.high is not None
        assert cost.overhead.value == pytest.approx(1 - (cost.parts["score"] + cost.draft) / cost.total)
        assert 0 < cost.overhead.low <= cost.overhead.value <= cost.overhead.high < 1
    assert (greedy.temperature, drawn.temperature) == (0.0, 1.0)


def test_a_slow_step_outside_the_model_raises_the_overhead(loaded: Loaded):
    meter = Meter(loaded, case(), PROMPTS)
    meter.run(PROMPTS[:2])
    usual = meter.cost().overhead
    for times in meter.rounds:
        times.add("verify", 0.1)
    slow = meter.cost().overhead
    assert usual and slow and slow.value > 0.9 > usual.value


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_known_text_is_accepted_up_to_its_planted_errors(loaded: Loaded, temperature: float):
    params = case(temperature=temperature).params
    recipe = replay(loaded, PROMPTS, params, 4)
    (cost,) = measure(loaded, [Case("known", recipe, params, 1)], PROMPTS)
    assert cost.tokens_per_pass > 1.5 and cost.draft == 0


def test_where_passes_are_only_enqueued_the_whole_draft_counts_as_model(loaded):
    meter = Meter(loaded, case(), PROMPTS)
    meter.run(PROMPTS[:1])
    for times in meter.rounds:
        times.add("propose", 0.1)
        times.draft_seconds += 0.01
    on_host = meter.cost().overhead
    with as_if_on_a_device():
        on_device = meter.cost().overhead
    assert on_host and on_device and on_device.value < on_host.value
