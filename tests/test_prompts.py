"""Prompts and conversations are read as users write them, or refused with a hint."""

from typing import Any

import numpy as np
import pytest
import torch

from draftwood.errors import OptionError
from draftwood.prompts import messages_of, split_conversations, split_prompts, token_ids


@pytest.mark.parametrize(
    ("given", "prompts", "alone"),
    [
        ("a", ["a"], True),
        ([1, 2], [[1, 2]], True),
        (np.array([1, 2]), [[1, 2]], True),
        (torch.tensor([1, 2]), [[1, 2]], True),
        (torch.tensor([[1, 2]]), [[1, 2]], False),
        (["a", "b"], ["a", "b"], False),
        (["a", [1, 2], np.array([3])], ["a", [1, 2], [3]], False),
        ((np.int32(1), torch.tensor(2)), [[1, 2]], True),
        (range(3), [[0, 1, 2]], True),
        ([[]], [[]], False),
        ([], [], False),
    ],
)
def test_one_prompt_is_told_from_many(given: Any, prompts: list[Any], alone: bool) -> None:
    assert split_prompts(given) == (prompts, alone)


@pytest.mark.parametrize(
    "given",
    [None, 5, {"a": 1}, b"ab", [None], [[1, "x"]], [[True]], np.array([0.5]), np.array(3), [1, "a"], [{"a": 1}]],
)
def test_what_is_no_prompt_is_refused_with_a_hint(given: Any) -> None:
    with pytest.raises(OptionError, match=r"cannot be .*\nhint: "):
        split_prompts(given)


def test_ids_are_whole_numbers_of_python() -> None:
    assert [type(i) for i in token_ids(np.array([1, 2], dtype=np.int16))] == [int, int]


def test_list_of_messages_is_one_conversation() -> None:
    message = {"role": "user", "content": "Hi"}
    assert split_conversations([message]) == ([[message]], True)
    assert split_conversations("Hi") == (["Hi"], True)
    assert split_conversations(["Hi", [message]]) == (["Hi", [message]], False)


@pytest.mark.parametrize("given", [None, 5, {"role": "user"}, [], b"x"])
def test_what_is_no_conversation_is_refused_with_a_hint(given: Any) -> None:
    with pytest.raises(OptionError, match=r'hint: \[\{"role": "user", "content": "Hi"\}\]'):
        split_conversations(given)


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    assert messages_of([{"role": "user", "content": parts, "name": "Ann"}]) == [
        {"role": "user", "content": "Hello\nthere", "name": "Ann"}
    ]
    assert messages_of("Hi") == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": "x"}, {"type": "text"}, "Hello", {"text": "Hello"}]
)
def test_other_parts_are_refused(part: Any) -> None:
    with pytest.raises(OptionError, match=r"(?s)a content part cannot be .*hint: models here read text only"):
        messages_of([{"role": "user", "content": [part]}])


@pytest.mark.parametrize("content", [None, 5, b"x"])
def test_content_that_is_no_text_is_the_messages_fault(content: Any) -> None:
    with pytest.raises(OptionError, match="the content of a message cannot be"):
        messages_of([{"role": "user", "content": content}])


@pytest.mark.parametrize("talk", [[], [None], [{"role": "user", "content": "x"}, "y"], 5])
def test_messages_must_be_messages(talk: Any) -> None:
    with pytest.raises(OptionError, match="hint: "):
        messages_of(talk)
