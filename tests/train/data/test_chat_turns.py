"""Dialogues grow as the template would have written them."""

import pytest

from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import END
from draftwood.train.data.chat_turns import Turns, key_of


@pytest.fixture(scope="module")
def turns(tiny: Loaded) -> Turns:
    return Turns(tiny.tokenizer, tiny.config.eos_token_ids)


def test_header_is_all_that_stands_before_the_first_word(turns: Turns):
    text = turns.tokenizer.decode
    assert text(turns.header) == "user: " and text(turns.next_header) == "\nuser: "
    assert text(turns.first("Hi")) == "user: Hi\nassistant: "
    assert turns.first_of_many(["Hi", "Ho"]) == [turns.first("Hi"), turns.first("Ho")]


def test_end_token_that_the_template_does_not_write_is_left_out_of_longer_dialogues(turns: Turns):
    end = turns.tokenizer.eos_token_ids[0]
    assert turns.continued([1, 2, end], [3, 4]) == ([1, 2], [3, 4])
    assert turns.continued([1, 2, end], [end, 4]) == ([1, 2, end], [4])
    assert turns.continued([1, 2], [end, 4]) == ([1, 2], [end, 4])
    assert turns.words([*turns.tokenizer.encode(" Hi "), end]) == "Hi" and END not in turns.words([end])


def test_real_template_is_cut_where_it_should_be():
    smollm2 = load("smollm2")
    real = Turns(smollm2.tokenizer, smollm2.config.eos_token_ids)
    talk = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."}]
    answer = [*real.tokenizer.encode("Two."), *real.tokenizer.eos_token_ids]
    kept, tail = real.continued(answer, real.next("Three?"))
    whole = real.tokenizer.encode_chat([*talk, {"role": "user", "content": "Three?"}])
    assert real.first("One?") + kept + tail == whole and kept == answer
    assert real.tokenizer.decode(real.header, skip_special=False).endswith("<|im_start|>user\n")
    assert real.tokenizer.decode(real.next_header, skip_special=False) == "<|im_end|>\n<|im_start|>user\n"


def test_turns_that_differ_in_case_or_punctuation_only_have_one_key():
    assert key_of("What is tea?") == key_of("  what is  TEA") != key_of("What is a tea?")
    assert key_of("???") != key_of("!!!")
