"""What a service refuses before anything runs."""

from typing import Any

import pytest

from live_server import LiveServer


@pytest.mark.parametrize(("where", "param"), [("chat", "messages"), ("completions", "prompt")])
def test_an_answer_that_cannot_fit_the_context_is_refused_with_the_numbers(
    server: LiveServer, where: str, param: str
) -> None:
    ask = server.chat if where == "chat" else server.complete
    most = server.service.max_model_len
    answer = ask("abc", max_tokens=2)
    used = answer.json()["usage"]["prompt_tokens"]
    error: dict[str, Any] = ask("abc", max_tokens=most - used + 1).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "max_tokens"
    assert all(str(number) in error["message"] for number in (most, used, most - used + 1, most - used))
    error = ask("abc " * most).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == param


def test_an_answer_without_a_limit_ends_where_the_context_does(server: LiveServer) -> None:
    most = server.service.max_model_len
    prompt = [3] * (most - 5)
    found = server.complete(prompt, temperature=0, ignore_eos=True).json()
    assert found["usage"]["completion_tokens"] == 5 and found["choices"][0]["finish_reason"] == "length"
    assert server.complete(prompt, max_tokens=5, ignore_eos=True).status_code == 200
