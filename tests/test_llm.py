"""LLM, as scripts and notebooks use it: on the embedded model, with its own tokenizer."""

import gc
import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import LLM, SamplingParams
from draftwood.core.config import EngineConfig
from draftwood.errors import EngineError, OptionError, UnknownNameError
from draftwood.models.loading.load import Loaded, load
from draftwood.prompts import Conversation
from draftwood.testing.folder import write_folder

pytestmark = pytest.mark.slow

COPY = "Repeat this sentence word for word: The quick brown fox jumps over the lazy dog near the quiet river bank."


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("smollm2")


@pytest.fixture(scope="module")
def plain(loaded: Loaded) -> LLM:
    return LLM(loaded, "autoregressive")


@pytest.fixture
def llm(loaded: Loaded) -> Iterator[LLM]:
    with LLM(loaded, "prompt_lookup", config=EngineConfig(max_num_seqs=4)) as made:
        yield made
        made.engine.runner.check_integrity()


def test_five_lines_answer_and_account_for_every_token(llm: LLM, plain: LLM) -> None:
    got = llm.chat(COPY, max_tokens=24)
    assert got.text == plain.chat(COPY, max_tokens=24).text and got.lossless
    assert got.text == "".join(p.text for p in got.pieces)
    assert [p.token_id for p in got.pieces] == list(got.token_ids)
    drafted = sum(p.source >= 0 for p in got.pieces)
    assert drafted > 5 and got.tokens_per_pass > 1.3
    assert got.stats.target_passes == len(got.token_ids) - drafted, "every pass emits one token of its own"


def test_batch_invariance_is_promised_by_int8_and_refused_by_floats(loaded: Loaded, tmp_path: Path) -> None:
    with LLM(loaded, "autoregressive", batch_invariant=True) as llm:
        assert llm.config.batch_invariant and llm.runner.info.batch_invariant
    with pytest.raises(OptionError, match="batch_invariant: float32 on cpu cannot promise it"):
        LLM(str(write_folder(tmp_path)), "autoregressive", dtype="float32", batch_invariant=True)
    with pytest.raises(OptionError, match="batch_invariant must be True or False"):
        EngineConfig(batch_invariant=2)  # type: ignore[arg-type]


def test_options_beside_a_built_recipe_are_refused(loaded: Loaded, plain: LLM) -> None:
    with pytest.raises(
        OptionError, match=r"depth=5 cannot change a recipe that is already built\nhint: give depth to its parts"
    ):
        LLM(loaded, plain.recipe, depth=5)


def test_a_lossy_recipe_is_warned_about_once(loaded: Loaded, caplog: pytest.LogCaptureFixture) -> None:
    LLM(loaded, "dynamic_mcsd")
    assert "LOSSY" not in caplog.text, "by itself it is exact"
    with LLM(loaded, "dynamic_mcsd", roots="target") as lossy:
        for _ in range(2):
            assert not lossy.generate("One, two,", max_tokens=2).lossless
    said = [record.getMessage() for record in caplog.records if "LOSSY" in record.getMessage()]
    assert said == ["dynamic_mcsd:roots=target is LOSSY: its texts do not follow the model's distribution"]


def test_a_list_of_prompts_with_params_of_their_own(llm: LLM) -> None:
    prompts = ["One, two, three, four,", "The capital of France is", "A B C D E F G"]
    params = [SamplingParams(max_tokens=n, temperature=t, seed=n) for n, t in ((3, 0.0), (5, 1.0), (4, 0.0))]
    together = llm.generate(prompts, params)
    assert [len(r.token_ids) for r in together] == [3, 5, 4] and [r.seed for r in together] == [3, 5, 4]
    assert [r.text for r in together] == [llm.generate(p, q).text for p, q in zip(prompts, params, strict=True)]


def test_token_ids_are_prompts_too(llm: LLM) -> None:
    ids = llm.tokenizer.encode("One, two, three,", special=True)
    assert llm.generate([ids], max_tokens=3)[0].text == llm.generate("One, two, three,", max_tokens=3).text
    for given in (ids, tuple(ids), np.array(ids), torch.tensor(ids), [np.int64(i) for i in ids]):
        assert llm.generate(given, max_tokens=3).text == llm.generate("One, two, three,", max_tokens=3).text
    for several in ([np.array(ids), torch.tensor(ids)], np.array([ids, ids]), torch.tensor([ids, ids])):
        assert len({r.text for r in llm.generate(several, max_tokens=3)}) == 1
    last = list(llm.stream(torch.tensor(ids), max_tokens=3))[-1].result
    assert last is not None and last.prompt == ids and json.dumps(last.to_dict())


def test_a_stream_adds_up_to_the_answer(llm: LLM) -> None:
    chunks = list(llm.chat(COPY, stream=True, max_tokens=12))
    whole = llm.chat(COPY, max_tokens=12)
    assert "".join(c.text for c in chunks) == whole.text
    assert [p.token_id for c in chunks for p in c.pieces] == list(whole.token_ids)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert len(chunks) < len(whole.token_ids), "one chunk a round, several tokens a chunk"


def test_characters_of_many_bytes_never_break_in_a_stream(llm: LLM) -> None:
    chunks = list(llm.stream("🎉🎊🥳🎉🎊🥳🎉🎊🥳🎉🎊", max_tokens=12))
    assert "\ufffd" not in "".join(c.text for c in chunks[:-1])


def test_closing_a_stream_cancels_the_request(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", max_tokens=200)
    next(stream)
    assert llm.engine.has_work
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.has_work


def test_a_stop_string_across_token_borders_never_shows(llm: LLM) -> None:
    free = llm.chat(COPY, max_tokens=20).text
    stop = free[10:18]
    chunks = list(llm.chat(COPY, stream=True, max_tokens=20, stop=(stop,)))
    assert "".join(c.text for c in chunks) == free[: free.index(stop)] and chunks[-1].finish_reason == "stop"
    assert llm.chat(COPY, max_tokens=20, stop=(stop,)).text == free[: free.index(stop)]


def test_a_second_turn_finds_the_first_in_the_cache(llm: LLM) -> None:
    talk = [{"role": "user", "content": "Name a colour."}]
    first = llm.chat(talk, max_tokens=8)
    talk += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Another one."}]
    second = llm.chat(talk, max_tokens=4)
    assert second.stats.cached_tokens >= first.num_prompt_tokens - 4


def test_two_threads_share_one_engine(llm: LLM) -> None:
    questions = ["Count to five.", "Name a fruit."]
    wanted = [llm.chat(q, max_tokens=8).text for q in questions]
    got: dict[int, str] = {}

    def ask(i: int) -> None:
        got[i] = llm.chat(questions[i], max_tokens=8).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[0], got[1]] == wanted


def test_bad_words_never_appear(llm: LLM) -> None:
    free = llm.chat("Name the capital of France.", max_tokens=12).text
    assert "Paris" in free
    assert "Paris" not in llm.chat("Name the capital of France.", max_tokens=12, bad_words=["Paris"]).text


def test_logprobs_are_the_models_own(llm: LLM) -> None:
    got = llm.generate("The capital of France is", max_tokens=4, logprobs=3)
    assert got.logprobs is not None and len(got.logprobs) == 4
    for token, entry in zip(got.token_ids, got.logprobs, strict=True):
        assert entry.token_id == entry.top[0].token_id == token and len(entry.top) == 3
        assert entry.top[0].logprob == pytest.approx(entry.logprob), "greedy takes the most probable token"
    assert "".join(entry.text for entry in got.logprobs) == got.text


def test_nonsense_is_refused_before_any_token(llm: LLM, loaded: Loaded) -> None:
    bad: tuple[dict[str, Any], ...] = ({"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"warmth": 3})
    for options in bad:
        with pytest.raises(OptionError):
            llm.generate("x", **options)
    with pytest.raises(OptionError, match="empty"):
        llm.chat([])
    with pytest.raises(UnknownNameError, match="did you mean 'prompt_lookup'"):
        LLM(loaded, "promt_lookup")
    with pytest.raises(UnknownNameError, match="smollm2"):
        LLM("smolm2")
    with pytest.raises(OptionError, match="params"):
        llm.generate(["a", "b"], [SamplingParams()])
    short = LLM(loaded, "autoregressive", config=EngineConfig(max_model_len=8))
    with pytest.raises(OptionError, match="shorten"):
        short.generate("one two three four five six seven eight nine ten")


def test_a_failing_prompt_of_a_list_leaves_nothing_running(llm: LLM) -> None:
    with pytest.raises(OptionError):
        llm.generate(["fine", [10**9]], max_tokens=3)
    assert not llm.engine.has_work


def test_a_closed_model_says_so(loaded: Loaded) -> None:
    closed = LLM(loaded, "autoregressive")
    closed.close()
    with pytest.raises(EngineError, match="closed"):
        closed.generate("x")


def test_an_empty_prompt_continues_from_the_start_token(llm: LLM) -> None:
    assert len(llm.generate("", max_tokens=2).token_ids) == 2


def test_forgotten_streams_neither_block_nor_run_on(llm: LLM) -> None:
    class Page:
        """Holds a stream and itself: only the garbage collector ends it, at a moment of its own choosing."""

        def __init__(self) -> None:
            self.me, self.stream = self, llm.stream("Once upon a time", max_tokens=200)
            next(self.stream)

    for _ in range(3):
        Page()
        llm.generate("One, two,", max_tokens=2)
    gc.collect()
    llm.generate("One, two,", max_tokens=2)
    assert not llm.engine.has_work


def test_a_stream_that_is_not_read_never_starts(llm: LLM) -> None:
    llm.stream("Once upon a time", max_tokens=200)
    assert not llm.engine.has_work
    with pytest.raises(OptionError):
        llm.stream("Once", max_tokens=0)


def test_an_answer_without_a_token_is_still_a_result(llm: LLM, loaded: Loaded) -> None:
    banned = [(i,) for i in range(loaded.config.vocab_size)]
    good, bad = llm.generate(["One, two,"] * 2, [SamplingParams(max_tokens=2), SamplingParams(bad_words=tuple(banned))])
    assert bad.finish_reason == "error" and bad.token_ids == () and "no token is left" in str(bad.error)
    assert len(good.token_ids) == 2


# --- interrupts


@pytest.mark.parametrize("tokens", [2, 12])
def test_interrupt_cancels_and_the_model_stays_usable(llm: LLM, plain: LLM, tokens: int) -> None:
    """A notebook's stop button: SIGINT at any moment of a round."""
    wanted = plain.chat(COPY, max_tokens=8).text
    rounds: list[int] = []
    llm.engine.recipe = replace(llm.recipe, watch=(lambda *_: press(tokens),))

    def press(at: int) -> None:
        rounds.append(1)
        if len(rounds) == at:
            os.kill(os.getpid(), signal.SIGINT)

    calls: tuple[Callable[[], Any], ...] = (
        lambda: llm.generate(["Once upon a time"] * 9, max_tokens=100, ignore_eos=True),
        lambda: list(llm.stream("Once upon a time", max_tokens=100, ignore_eos=True)),
        lambda: llm.chat("Tell me a story.", max_tokens=100, ignore_eos=True),
    )
    for call in calls:
        rounds.clear()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert not llm.engine.has_work and not llm.engine.closed
        assert llm.chat(COPY, max_tokens=8).text == wanted
        llm.engine.runner.check_integrity()


def test_interrupt_at_a_random_moment_too(llm: LLM, plain: LLM) -> None:
    wanted = plain.chat(COPY, max_tokens=4).text
    for delay in (0.0, 0.003, 0.01, 0.02, 0.04, 0.07):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            llm.generate(["Once upon a time"] * 6, max_tokens=400, ignore_eos=True)
        assert llm.chat(COPY, max_tokens=4).text == wanted


# --- many prompts, many samples


def test_five_equal_prompts_differ_and_their_seeds_repeat_them(llm: LLM) -> None:
    five = llm.generate(["Once upon a time"] * 5, temperature=1.0, max_tokens=12)
    assert len({r.text for r in five}) == len({r.seed for r in five}) == 5
    again = llm.generate("Once upon a time", temperature=1.0, max_tokens=12, seed=five[3].seed)
    assert again.text == five[3].text


def test_samples_of_a_prompt_stand_in_its_result(llm: LLM) -> None:
    first, second = llm.generate(["Once upon", "In the end"], n=3, temperature=1.0, max_tokens=6, seed=7)
    assert [r.seed for r in first.samples] == [7, 8, 9] and first.samples[0] is first
    assert len({r.text for r in first.samples}) == 3 and second.prompt == "In the end"
    assert first.samples[2].text == llm.generate("Once upon", temperature=1.0, max_tokens=6, seed=9).text
    assert len(first.to_dict()["samples"]) == 2
    drawn = llm.generate("Once upon", n=4, temperature=1.0, max_tokens=6)
    assert len({r.seed for r in drawn.samples}) == 4 and drawn.samples[0].samples == drawn.samples
    with pytest.raises(OptionError, match="a stream has one sample, n is 2"):
        llm.stream("Once upon", n=2, temperature=1.0)


def test_more_prompts_than_may_wait_are_queued(loaded: Loaded) -> None:
    config = EngineConfig(max_num_seqs=4, max_model_len=64, max_num_waiting=5)
    with LLM(loaded, "autoregressive", config=config) as small:
        results = small.generate([[i] for i in range(1, 61)], max_tokens=1)
        assert [r.prompt for r in results] == [[i] for i in range(1, 61)]
        assert all(r.num_tokens == 1 for r in results)


def test_conversations_are_answered_together(llm: LLM) -> None:
    parts = [{"type": "text", "text": "Name a colour."}]
    talks: list[Conversation] = ["Name a fruit.", [{"role": "user", "content": parts}]]
    both = llm.chat(talks, max_tokens=6)
    assert [r.text for r in both] == [llm.chat(q, max_tokens=6).text for q in ("Name a fruit.", "Name a colour.")]
    with pytest.raises(OptionError, match="a stream answers one conversation, got 2"):
        llm.chat(talks, stream=True)  # type: ignore[call-overload]


# --- ends


def test_fields_of_the_engine_config_may_be_keywords(loaded: Loaded) -> None:
    with LLM(loaded, "autoregressive", config=EngineConfig(max_num_seqs=3), max_model_len=16) as small:
        assert small.config == EngineConfig(max_num_seqs=3, max_model_len=16)
    with pytest.raises(OptionError, match="max_model_len must be a positive whole number, got 'long'"):
        LLM(loaded, "autoregressive", max_model_len="long")


def test_end_of_the_context_is_told_from_the_limit(loaded: Loaded) -> None:
    with LLM(loaded, "autoregressive", config=EngineConfig(max_model_len=16)) as small:
        got = small.generate("One, two, three,", max_tokens=100, ignore_eos=True)
        assert (
            (got.finish_reason, got.finish_detail)
            == ("length", "context")
            == (
                got.to_dict()["finish_reason"],
                got.to_dict()["finish_detail"],
            )
        )
        assert small.generate("One, two, three,", max_tokens=2).finish_detail == "max_tokens"


def test_stop_text_and_stop_tokens_end_with_or_without_themselves(llm: LLM) -> None:
    free = llm.chat(COPY, max_tokens=20)
    stop, token = free.text[10:18], free.token_ids[4]
    kept = llm.chat(COPY, max_tokens=20, stop=stop, include_stop_str_in_output=True)
    assert kept.text == free.text[:18] and kept.finish_detail == "stop_string"
    streamed = llm.chat(COPY, max_tokens=20, stop=stop, include_stop_str_in_output=True, stream=True)
    assert "".join(c.text for c in streamed) == kept.text
    at = llm.chat(COPY, max_tokens=20, stop_token_ids=[token])
    assert at.finish_detail == "stop_token" and at.token_ids[-1] == token and token not in at.token_ids[:-1]
    assert llm.chat(COPY, max_tokens=20, stop_token_ids=[token], include_stop_str_in_output=True).text.startswith(
        at.text
    )


def test_dict_is_params(llm: LLM) -> None:
    wanted = llm.generate("One, two,", SamplingParams(max_tokens=3)).text
    assert llm.generate("One, two,", {"max_tokens": 3}).text == wanted
    assert [r.num_tokens for r in llm.generate(["a", "b"], [{"max_tokens": 1}, SamplingParams(max_tokens=2)])] == [1, 2]
    assert llm.generate("One, two,", {"max_tokens": 9}, max_tokens=3).text == wanted, "keywords come last"


@pytest.mark.parametrize("options", [{"bad_words": [""]}, {"bad_words": [" "]}, {"bad_words": 5}, {"params": {1: 2}}])
def test_words_and_names_that_are_none_are_refused(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"(?s)(bad_words|params) cannot .*hint"):
        llm.generate("One, two,", **options)


# --- what cannot be done, and what a model says of itself


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recipe": None}, "recipe cannot be None\nhint: a name such as 'auto'"),
        ({"recipe": 3}, "recipe cannot be 3"),
        ({"model": None}, "model cannot be None\nhint: a name such as 'smollm2'"),
        ({"device": "tpux"}, "device cannot be 'tpux'"),
        ({"device": "cuda:77"}, "device cuda:77 cannot be used: .*\nhint: "),
    ],
)
def test_arguments_that_make_no_model_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        LLM(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_missing_gpu_is_reported() -> None:
    with pytest.raises(
        OptionError, match=r"device cuda cannot be used: .*\nhint: .*leave out device to run on the CPU"
    ):
        LLM(device="cuda")


def test_loaded_model_is_used_where_it_is(loaded: Loaded) -> None:
    for device in ("auto", "cpu", torch.device("cpu")):
        assert LLM(loaded, "autoregressive", device=device).device == loaded.info.device
    with pytest.raises(OptionError, match=r"smollm2 is loaded on cpu, not on meta\nhint: leave out device"):
        LLM(loaded, "autoregressive", device="meta")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.chat(None), "a conversation cannot be None\nhint: "),
        (lambda llm: llm.chat({"role": "user", "content": "x"}), "this is one message"),
        (lambda llm: llm.chat([None]), "a conversation cannot be None"),
        (lambda llm: llm.generate(None), "a prompt cannot be None\nhint: "),
        (lambda llm: llm.generate({"prompt": "x"}), "a prompt cannot be "),
        (lambda llm: llm.generate([["x"]]), "a token id cannot be 'x'"),
        (lambda llm: llm.generate([[1.5]]), "a token id cannot be 1.5"),
        (lambda llm: llm.stream(5), "a prompt cannot be 5"),
        (lambda llm: llm.generate("x", 3), "params cannot be 3\nhint: SamplingParams"),
        (lambda llm: llm.generate("x", {"warmth": 3}), "unknown sampling option: 'warmth'\nhint: one of"),
        (lambda llm: llm.generate("x", max_token=3), "did you mean 'max_tokens'"),
    ],
)
def test_arguments_that_make_no_answer_are_refused(plain: LLM, call: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        call(plain)


def test_model_cannot_be_pickled(plain: LLM) -> None:
    with pytest.raises(OptionError, match=r"cannot be pickled.*\nhint: open it in each process: LLM\('smollm2'"):
        pickle.dumps(plain)


def test_path_names_a_model() -> None:
    with pytest.raises(UnknownNameError, match="no_such_folder"):
        LLM(Path("no_such_folder"))


def test_repr_and_log_tell_what_runs(loaded: Loaded, plain: LLM, caplog: pytest.LogCaptureFixture) -> None:
    assert repr(plain) == (
        f"LLM('smollm2', recipe='autoregressive', backend='{loaded.info.backend}', max_model_len=8192, max_num_seqs=8)"
    )
    noted = replace(plain.recipe, notes=("the drafter is the target's first layers.",))
    with caplog.at_level(logging.INFO, logger="draftwood"), LLM(loaded, noted) as told:
        assert 'notes=["the drafter is the target\'s first layers."]' in repr(told)
    assert "the drafter is the target's first layers." in caplog.text and "closed" in repr(told)


def test_alternatives_differ_are_labelled_and_one_alone_is_greedy_decoding(plain: LLM) -> None:
    prompt = "The capital of France is"
    found = plain.alternatives(prompt, 4, max_tokens=8)
    assert len(set(found.texts)) == 4 and not found.lossless and found.prompt == prompt
    assert sum(each.share for each in found.alternatives) == pytest.approx(1)
    assert list(found.scores) == sorted(found.scores, reverse=True)
    assert found.target_passes <= 8, "all of them together"
    for text in (prompt, plain.chat_prompt("Say hi.")):
        (one,) = plain.alternatives(text, 1, max_tokens=24, alpha=0.0).alternatives
        want = plain.generate(text, max_tokens=24)
        assert (one.text, one.token_ids, one.finish_reason) == (want.text, want.token_ids, want.finish_reason)


def test_alternatives_leave_the_engine_alone_and_check_what_they_are_given(plain: LLM) -> None:
    before = plain.generate(COPY, max_tokens=12, seed=1).text
    plain.alternatives(COPY)
    assert plain.generate(COPY, max_tokens=12, seed=1).text == before
    for wrong in ({"k": 0}, {"alpha": 1.0}, {"max_tokens": 0}, {"candidates": 2}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            plain.alternatives(COPY, **{"k": 3, **wrong})  # type: ignore[arg-type]
