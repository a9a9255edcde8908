"""A conversation carries its earlier turns, and an interrupted answer stays in it."""

import threading

import pytest

from draftwood.cli.answering.conversation import Talk, run
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError

SHORT = SamplingParams(max_tokens=4)


def test_next_prompt_holds_what_was_said(llm):
    talk = Talk(llm, system="Be brief.")
    first = talk.ask("Name a fruit.", SHORT)
    text = llm.tokenizer.decode(talk.prompt("Another?"), skip_special=False)
    assert text.index("Be brief.") < text.index("Name a fruit.") < text.index(first.text) < text.index("Another?")


def test_second_turn_starts_from_the_cache(llm):
    talk = Talk(llm)
    first = talk.ask("Name a fruit.", SHORT)
    assert talk.ask("Another?", SHORT).stats.cached_tokens > first.num_prompt_tokens


def test_raw_talk_is_the_texts_one_after_the_other(llm):
    talk = Talk(llm, raw=True)
    first = talk.ask("one two three", SHORT)
    assert talk.prompt(" and") == f"one two three{first.text} and"


def test_shown_pieces_are_the_answer(llm):
    shown: list[str] = []
    result = run(llm, "one two three one two three one", SHORT, show=lambda piece: shown.append(piece.text))
    assert "".join(shown) == result.text


def test_interrupted_answer_is_kept_as_far_as_it_got(llm):
    until, talk = threading.Event(), Talk(llm)
    result = talk.ask("Count to ten.", SamplingParams(max_tokens=50), until=until, show=lambda _: until.set())
    assert result.finish_reason == "cancelled" and 0 < len(result.token_ids) < 50
    assert talk.turns == [("Count to ten.", result.text)]
    assert not llm.engine.has_work


def test_system_message_without_a_template_is_refused(llm):
    with pytest.raises(OptionError, match="chat template"):
        Talk(llm, system="Be brief.", raw=True)
