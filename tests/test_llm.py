"""LLM, as scripts and notebooks use it: on the embedded model, with its own tokenizer."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from draftwood import LLM, SamplingParams
from draftwood.core.config import EngineConfig
from draftwood.errors import EngineError, OptionError, UnknownNameError
from draftwood.models.loading.load import Loaded, load

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
        made.engine.cache.check_integrity()


def test_five_lines_answer_and_account_for_every_token(llm: LLM, plain: LLM) -> None:
    got = llm.chat(COPY, max_tokens=24)
    assert got.text == plain.chat(COPY, max_tokens=24).text and got.lossless
    assert got.text == "".join(p.text for p in got.pieces)
    assert [p.token for p in got.pieces] == list(got.tokens)
    drafted = sum(p.source >= 0 for p in got.pieces)
    assert drafted > 5 and got.tokens_per_pass > 1.3
    assert got.stats.target_passes == len(got.tokens) - drafted, "every pass emits one token of its own"


def test_options_beside_a_built_recipe_are_refused(loaded: Loaded, plain: LLM) -> None:
    with pytest.raises(
        OptionError, match=r"depth=5 stands beside a recipe that is built.*\nhint: give depth to its parts"
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
    assert [len(r.tokens) for r in together] == [3, 5, 4] and [r.seed for r in together] == [3, 5, 4]
    assert [r.text for r in together] == [llm.generate(p, q).text for p, q in zip(prompts, params, strict=True)]


def test_token_ids_are_prompts_too(llm: LLM) -> None:
    ids = llm.tokenizer.encode("One, two, three,", special=True)
    assert llm.generate([ids], max_tokens=3)[0].text == llm.generate("One, two, three,", max_tokens=3).text
    with pytest.raises(OptionError, match="list of prompts"):
        llm.generate(ids, max_tokens=3)  # type: ignore[arg-type]


def test_a_stream_adds_up_to_the_answer(llm: LLM) -> None:
    chunks = list(llm.chat(COPY, stream=True, max_tokens=12))
    whole = llm.chat(COPY, max_tokens=12)
    assert "".join(c.text for c in chunks) == whole.text
    assert [p.token for c in chunks for p in c.pieces] == list(whole.tokens)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert len(chunks) < len(whole.tokens), "one chunk a round, several tokens a chunk"


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
    assert second.stats.cached_tokens >= first.prompt_tokens - 4


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
    for token, (chosen, best) in zip(got.tokens, got.logprobs, strict=True):
        assert best[0][0] == token and best[0][1] == pytest.approx(chosen), "greedy takes the most probable token"


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
    assert len(llm.generate("", max_tokens=2).tokens) == 2


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


def test_a_stream_nobody_reads_never_starts(llm: LLM) -> None:
    llm.stream("Once upon a time", max_tokens=200)
    assert not llm.engine.has_work
    with pytest.raises(OptionError):
        llm.stream("Once", max_tokens=0)


def test_an_answer_without_a_token_is_still_a_result(llm: LLM, loaded: Loaded) -> None:
    banned = [(i,) for i in range(loaded.config.vocab_size)]
    good, bad = llm.generate(["One, two,"] * 2, [SamplingParams(max_tokens=2), SamplingParams(bad_words=tuple(banned))])
    assert bad.finish_reason == "error" and bad.tokens == () and "no token is left" in str(bad.error)
    assert len(good.tokens) == 2
