"""A simulated recipe makes exactly the rounds that a run of it makes; what cannot be replayed is refused with the reason."""

from dataclasses import replace

import pytest

from draftwood.bench.trace.costs import fitted, spelt
from draftwood.bench.trace.records import Header, Record
from draftwood.bench.trace.simulate import (
    need_model,
    need_oracle,
    run_with_model,
    simulate,
    simulated_recipe,
    simulated_rounds,
)
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError, TraceError
from draftwood.models.loading.load import load
from draftwood.testing.folder import write_folder
from recorded_runs import header, params, prompts, totals, traced

EMBEDDED = "172bb21f5ee1ca21"  # the model that heads ship for
GREEDY = params(6)
SAMPLED = params(6, temperature=1.0)
PENALISED = params(6, temperature=0.7, repetition_penalty=1.1, min_tokens=3)
NAMES = ["prompt_lookup", "prompt_lookup:depth=3:nodes=5", "suffix_decoding:nodes=8", "autoregressive"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_simulation_equals_the_real_run_of_a_batch(name, options):
    """Recorded without drafts, simulated with them, and run with them."""
    _, trace = traced("autoregressive", options=options)
    recipe = simulated_recipe(name, trace)
    assert recipe is not None
    found = simulate(name, recipe, trace, fitted(trace.rounds))
    real = totals(traced(name, options=options)[0])
    assert (found.passes, found.tokens, found.rounds, found.drafted) == real
    assert name == "autoregressive" or real[2][0] + real[2][1] > 0 or options is PENALISED


@pytest.mark.parametrize("name", ["prompt_lookup", "suffix_decoding:nodes=8"])
def test_one_request_after_the_other_is_simulated_exactly(name):
    _, trace = traced("autoregressive", slots=1, eos=(0,))
    recipe = simulated_recipe(name, trace)
    assert recipe is not None
    found = simulate(name, recipe, trace, fitted(trace.rounds))
    assert (found.passes, found.tokens, found.rounds, found.drafted) == totals(traced(name, slots=1, eos=(0,))[0])


def test_turns_of_a_conversation_wait_for_the_turns_before_them():
    """Otherwise a drafter that copies from other answers would copy an answer from its own future."""
    first, second = prompts(2)
    answer = traced("autoregressive", 1, texts=[first])[0][0].output
    _, trace = traced("autoregressive", texts=[first, second, first + answer], arrive={2: 30})
    assert [each.follows for each in trace.requests] == [(), (), (0,)]
    assert max(each.alongside for each in trace.requests) == 1, "there is room for the third beside the first"
    recipe = simulated_recipe("prompt_lookup", trace)
    assert recipe is not None
    rounds = simulated_rounds(recipe, trace, fitted(trace.rounds))
    together = [{each.request for each in rnd.sequences} for rnd in rounds]
    assert {0, 1} in together and not any({0, 2} <= each for each in together)


def test_another_text_gives_other_rounds():
    """The twin: if the recorded text were not what decides, this would pass unnoticed."""
    _, trace = traced("autoregressive")
    recipe = simulated_recipe("prompt_lookup", trace)
    assert recipe is not None
    before = simulate("x", recipe, trace, fitted(trace.rounds))
    for each in trace.requests:
        each.output = [(token + i) % 61 for i, token in enumerate(each.output)]
    after = simulate("x", recipe, trace, fitted(trace.rounds))
    assert (after.passes, after.rounds) != (before.passes, before.rounds)


def test_a_recording_that_stopped_early_is_replayed_up_to_there():
    _, trace = traced("prompt_lookup", cancel={1: 3, 4: 9})
    recipe = simulated_recipe("prompt_lookup", trace)
    assert recipe is not None and trace.unfinished
    assert simulate("x", recipe, trace, fitted(trace.rounds)).tokens == trace.num_tokens


def test_routes_follow_the_costs_they_are_given():
    _, trace = traced("autoregressive")
    recipe = simulated_recipe("suffix_decoding", trace)
    assert recipe is not None
    cheap = simulate("x", recipe, trace, spelt("pass=1:5,2:5,64:5.1"))
    dear = simulate("x", recipe, trace, spelt("pass=1:5,2:15,64:500"))
    assert cheap.drafted > dear.drafted
    assert cheap.tokens_per_pass > dear.tokens_per_pass


def test_drafters_that_need_the_model_are_not_simulated():
    _, trace = traced("autoregressive")
    for name in ("eagle3", "medusa", "speculative_sampling:draft=first:1", "vocab_trim"):
        assert simulated_recipe(name, trace) is None
    shipped = replace(trace, header=header(fingerprint=EMBEDDED))
    assert simulated_recipe("auto", shipped) is None, "a head ships for this one"
    assert simulated_recipe("auto", trace) is not None


def test_wrong_options_of_a_drafter_without_a_model_are_reported_and_never_run():
    _, trace = traced("autoregressive")
    with pytest.raises(OptionError, match="datastore is needed"):
        simulated_recipe("rest", trace)


def test_traces_whose_text_is_not_the_targets_own_are_refused():
    _, trace = traced("prompt_lookup", options=SAMPLED)
    need_oracle(trace)
    trace.header = header(rule="Rejection")
    with pytest.raises(TraceError, match="recorded with Rejection, which uses random numbers of its own"):
        need_oracle(trace)
    trace.header = header(rule="Typical", lossless=False)
    with pytest.raises(TraceError, match="LOSSY"):
        need_oracle(trace)
    _, greedy = traced("prompt_lookup")
    greedy.header = header(rule="Rejection")
    need_oracle(greedy)


def test_simulated_costs_are_never_kept_as_the_models(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    _, trace = traced("autoregressive")
    simulated_recipe("suffix_decoding", trace)
    assert not list(tmp_path.rglob("*.json"))


def test_a_trace_of_another_model_or_backend_is_refused(tmp_path):
    loaded = load(str(write_folder(tmp_path / "m")), dtype="float32")
    _, trace = traced("autoregressive", 2)
    with pytest.raises(TraceError, match="the trace is of the model 'f00d'"):
        run_with_model("prompt_lookup", trace, fitted(trace.rounds), loaded)
    trace.header = header(fingerprint=loaded.fingerprint)
    with pytest.raises(TraceError, match="the trace is of the backend 'float64'"):
        need_model(trace, loaded)
    trace.header = header(fingerprint=loaded.fingerprint, backend=loaded.info.backend)
    need_model(trace, loaded)


def test_the_real_recipe_runs_on_the_recorded_prompts(tmp_path):
    from draftwood.bench.trace.attach import header_of
    from draftwood.bench.trace.recorder import Recorder
    from draftwood.bench.trace.trace import collect
    from draftwood.llm import LLM

    loaded = load(str(write_folder(tmp_path / "m")), dtype="float32")
    options = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    with LLM(loaded, "autoregressive", max_num_seqs=2) as llm:
        found: list[Header | Record] = [header_of(llm)]
        llm.record(Recorder(found.append))
        llm.generate(["abcabc", "xyxyxy", "hello"], options)
    trace = collect(found, "test")
    result = run_with_model("speculative_sampling:draft=first:1:verifier=match", trace, fitted(trace.rounds), loaded)
    assert result.tokens == trace.num_tokens
    assert "3 of 3 texts equal the recorded ones" in result.notes[0]
    assert result.drafted > 0
    with pytest.raises(TraceError, match=r"cannot be replayed: Rejection uses random numbers of its own"):
        run_with_model("speculative_sampling:draft=first:1", trace, fitted(trace.rounds), loaded)
