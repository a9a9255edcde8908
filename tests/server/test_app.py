"""The server as its callers see it: OpenAI's client and plain HTTP, against a live one."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from draftwood import LLM
from draftwood.core.config import EngineConfig
from draftwood.models.loading.load import Loaded
from draftwood.server.guard import Limits
from live_server import MODEL, LiveServer, events, started

ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "abc abc abc"}], "max_tokens": 12}
GREEDY = {**ASK, "temperature": 0}


@pytest.fixture(scope="module")
def direct(loaded: Loaded) -> LLM:
    """The same model without a server."""
    return LLM(loaded, "autoregressive")


def both(server: LiveServer, **given: Any) -> str:
    """The text of a chat answer by OpenAI's client, which must be the same as a stream."""
    client = server.openai()
    extra = {k: given.pop(k) for k in list(given) if k in EXTRA}
    whole = client.chat.completions.create(**{**ASK, **given}, extra_body=extra)
    chunks = list(client.chat.completions.create(**{**ASK, **given}, extra_body=extra, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    return text


EXTRA = (
    "top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids structured_outputs speculation timeout".split()
)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 3},
        {"seed": 3, "top_p": 0.6},
        {"seed": 3, "top_k": 4},
        {"seed": 3, "min_p": 0.1},
        {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 0, "logit_bias": {"97": 30, "98": -100}},
        {"temperature": 0, "max_completion_tokens": 5, "max_tokens": 5},
        {"seed": 1, "min_tokens": 8},
        {"seed": 1, "ignore_eos": True},
        {"seed": 5, "stop_token_ids": [65, 66, 67, 68]},
        {"temperature": 0, "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"temperature": 0, "prompt_cache_key": "k", "safety_identifier": "s"},
        {"temperature": 0, "prediction": {"type": "content", "content": "abc abc"}},
    ],
    ids=str,
)
def test_a_field_does_what_it_does_in_python(server: LiveServer, direct: LLM, given: dict[str, Any]) -> None:
    names = {"max_tokens": 12, "temperature": 1.0, **given}
    names["max_tokens"] = names.pop("max_completion_tokens", names["max_tokens"])
    names["logit_bias"] = {
        int(token): float("-inf") if bias == -100 else bias for token, bias in names.get("logit_bias", {}).items()
    }
    for accepted in (
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
        "prediction",
    ):
        names.pop(accepted, None)
    expected = direct.chat(ASK["messages"], **names)
    assert both(server, **given) == expected.text


def test_stop_strings_end_the_text_and_are_never_shown(server: LiveServer, direct: LLM) -> None:
    whole = direct.chat(ASK["messages"], max_tokens=12, temperature=0).text
    stop = whole[4:6]
    assert both(server, temperature=0, stop=[stop, "never said"]) == whole[: whole.index(stop)]
    assert both(server, temperature=0, stop=stop) == whole[: whole.index(stop)]


def test_log_probabilities_are_those_of_python(server: LiveServer, direct: LLM) -> None:
    expected = direct.chat(ASK["messages"], max_tokens=6, temperature=0, logprobs=2).logprobs or ()
    found = server.openai().chat.completions.create(**{**GREEDY, "max_tokens": 6}, logprobs=True, top_logprobs=2)
    content = found.choices[0].logprobs.content
    assert [each.logprob for each in content] == pytest.approx([each.logprob for each in expected])
    assert [len(each.top_logprobs) for each in content] == [2] * 6
    assert [bytes(each.bytes) for each in content] == [direct.tokenizer.token_bytes(e.token_id) for e in expected]
    chunks = server.openai().chat.completions.create(**{**GREEDY, "max_tokens": 6}, logprobs=True, stream=True)
    streamed = [e.logprob for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == pytest.approx([each.logprob for each in expected])
    old = server.complete("abc", max_tokens=3, temperature=0, logprobs=1).json()["choices"][0]["logprobs"]
    assert len(old["tokens"]) == len(old["token_logprobs"]) == len(old["top_logprobs"]) == len(old["text_offset"]) == 3


def test_choices_draw_with_seeds_of_their_own_and_share_the_prompt(server: LiveServer, direct: LLM) -> None:
    found = server.chat("abc " * 30, n=3, seed=11, max_tokens=8).json()
    samples = direct.chat(
        [{"role": "user", "content": "abc " * 30}], n=3, seed=11, temperature=1.0, max_tokens=8
    ).samples
    assert [c["message"]["content"] for c in found["choices"]] == [each.text for each in samples]
    assert [c["seed"] for c in found["choices"]] == [11, 12, 13]
    usage = found["usage"]
    assert usage["completion_tokens"] == 24 and usage["prompt_tokens"] == samples[0].num_prompt_tokens
    streamed = ["", "", ""]
    for chunk in events(server.chat("abc " * 30, n=3, seed=11, max_tokens=8, stream=True)):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert streamed == [each.text for each in samples]


def test_completions_take_texts_and_token_ids_one_or_many(server: LiveServer, direct: LLM) -> None:
    texts = ["abc", "xyz xyz"]
    ids = [direct.tokenizer.encode(text, special=True) for text in texts]
    expected = [direct.generate(text, max_tokens=16).text for text in texts]
    client = server.openai()
    for prompt in (texts, ids):
        found = client.completions.create(model=MODEL, prompt=prompt, temperature=0)
        assert [choice.text for choice in found.choices] == expected
    for prompt in (texts[0], ids[0]):
        chunks = client.completions.create(model=MODEL, prompt=prompt, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected[0]


def test_content_parts_and_the_developer_role_are_texts(server: LiveServer, direct: LLM) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    same = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab\ncd"}]
    found = server.openai().chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=8)
    assert found.choices[0].message.content == direct.chat(same, max_tokens=8).text


def test_usage_comes_last_in_a_stream_that_asks_for_it(server: LiveServer) -> None:
    chunks = list(
        server.openai().chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("recipe", ["prompt_lookup", "draft_and_verify:skip=a1"])
@pytest.mark.parametrize("seed", [1, 2])
def test_json_that_fits_its_schema_is_the_same_with_and_without_speculation(
    server: LiveServer, recipe: str, seed: int
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    given: dict[str, Any] = {"response_format": form, "seed": seed, "max_tokens": 80}
    drafted = both(server, **given, speculation={"recipe": recipe})
    assert drafted == both(server, **given, speculation={"enabled": False})
    assert set(json.loads(drafted)) == {"name", "age"}


def test_other_grammars_are_kept_too(server: LiveServer) -> None:
    assert both(server, seed=2, structured_outputs={"regex": "(yes|no){2}"}) in {"yesyes", "yesno", "noyes", "nono"}
    found = server.chat(seed=2, max_tokens=200, structured_outputs={"json": SCHEMA}).json()
    assert set(json.loads(found["choices"][0]["message"]["content"])) == {"name", "age"}
    found = server.chat(seed=4, max_tokens=120, response_format={"type": "json_object"}).json()["choices"][0]
    assert found["message"]["content"].startswith("{")
    assert found["finish_reason"] == "length" or isinstance(json.loads(found["message"]["content"]), dict)


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"tools": []}, "tools", "not supported"),
        ({"tool_choice": "none"}, "tool_choice", "not supported"),
        ({"functions": []}, "functions", "not supported"),
        ({"modalities": ["text"]}, "modalities", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": "warm"}, "temperature", "expected a number"),
        ({"temperature": -1}, "temperature", "expected 0 to"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"n": True}, "n", "expected a whole number"),
        ({"n": 1000}, "n", "1 to 64"),
        ({"max_tokens": 0}, "max_tokens", "1 to"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens", "differ"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "max_tokens is 2"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "no token id"),
        ({"logit_bias": {"100000": 1}}, None, "vocabulary"),
        ({"top_logprobs": 3}, "top_logprobs", "without logprobs"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", "without stream"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "several"),
        ({"structured_outputs": {"regex": "[a"}}, "structured_outputs", "unclosed"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}}}},
            "response_format",
            "uniqueItems",
        ),
        ({"speculation": {"recipe": "unheard"}}, "speculation.recipe", "no recipe"),
        ({"speculation": {"depth": 11}}, "speculation.depth", "at most 10"),
        ({"speculation": {"enabled": False, "depth": 3}}, "speculation.depth", "enabled"),
        ({"speculation": {"recipe": "autoregressive", "nodes": 3}}, "speculation.nodes", "has no nodes"),
        ({"speculation": {"deep": 3}}, "speculation.deep", "unknown"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "developer"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "'image_url' are not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "messages[0].content[0]",
            "'input_audio' are not supported",
        ),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context"),
    ],
    ids=lambda each: str(each)[:40] if isinstance(each, dict) else "",
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    server: LiveServer, given: dict[str, Any], param: str | None, said: str
) -> None:
    for stream in (False, True):
        found = server.post("/v1/chat/completions", {**ASK, "stream": stream, **given})
        error = found.json()["error"]
        assert found.status_code == 400, error
        assert error["param"] == param and said in error["message"] and error["type"] == "invalid_request_error"
    assert server.idle()


def test_a_recipe_that_this_model_cannot_have_is_refused(loaded: Loaded) -> None:
    with started(loaded, ("prompt_lookup", "eagle3", "auto:depth=3")) as server:
        found = server.chat(speculation={"recipe": "eagle3"}, max_tokens=2)
        assert found.status_code == 400 and found.json()["error"]["param"] == "speculation.recipe"
        assert server.chat(speculation={"recipe": "auto:depth=3", "depth": 4}).status_code == 400
        assert server.chat(max_tokens=2).status_code == 200


def test_an_unknown_model_or_path_is_not_found(server: LiveServer) -> None:
    assert server.post("/v1/chat/completions", {**ASK, "model": "gpt"}).status_code == 404
    with server.client() as client:
        assert client.get("/v1/nothing").status_code == 404
        assert client.get("/v1/chat/completions").status_code == 405
        assert client.options("/v1/chat/completions").status_code == 405
        assert [each["id"] for each in client.get("/v1/models").json()["data"]] == [MODEL]
        assert client.get(f"/v1/models/{MODEL}").json()["id"] == MODEL
        assert client.get("/v1/models/gpt").status_code == 404


def test_the_statistics_of_speculation_add_up(server: LiveServer) -> None:
    found = server.chat("abcd " * 20, temperature=0, max_tokens=60, ignore_eos=True).json()
    block = found["metrics"]["speculative_decoding"]
    histogram = block["acceptance_histogram"]
    assert sum(histogram) == block["num_spec_steps"]
    accepted = sum(k * rounds for k, rounds in enumerate(histogram))
    assert accepted == block["num_accepted_draft_tokens"]
    assert block["draft_acceptance_rate"] == pytest.approx(accepted / block["num_draft_tokens"])
    assert block["mean_acceptance_length"] == pytest.approx(1 + accepted / block["num_spec_steps"])
    assert block["estimated_saved_ms"] is None or isinstance(block["estimated_saved_ms"], float)
    plain = server.chat("abcd", temperature=0, speculation={"enabled": False}, max_tokens=4).json()["metrics"]
    assert plain["recipe"] == "autoregressive" and plain["speculative_decoding"]["num_draft_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_rounds_and_provenance_tell_one_story(server: LiveServer, stream: bool) -> None:
    show = {"provenance": True, "rounds": True}
    bias = {"97": 8, "98": 8}  # repeats itself, so drafts are accepted
    given = {"seed": 1, "max_tokens": 40, "ignore_eos": True, "logit_bias": bias, "stream": stream}
    response = server.chat("abab " * 20, **given, speculation=show)
    if stream:
        chunks = events(response)
        tokens = [each for c in chunks for each in c["choices"][0].get("provenance", [])]
        rounds = [each for c in chunks for each in c.get("rounds", [])]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    else:
        body = response.json()
        tokens, rounds = body["choices"][0]["provenance"], body["rounds"]
        text = body["choices"][0]["message"]["content"]
    assert "".join(each["text"] for each in tokens) == text and len(tokens) == 40
    assert [each["index"] for each in rounds] == list(range(len(rounds)))
    for each in rounds:
        own = [token for token in tokens if token["round"] == each["index"]]
        assert len(own) == len(each["emitted"])
        drafted = [each["token_ids"][node - 1] for node in each["accepted"]]
        assert [token["token_id"] for token in own if token["source"] >= 0] == drafted
        at = 0
        for node in each["accepted"]:  # a path from the root down
            assert each["parents"][node - 1] == at
            at = node
        sizes = {len(each[name]) for name in ("token_ids", "texts", "parents", "sources", "probability")}
        assert len(sizes) == 1 and set(each["seconds"]) == {"draft", "verify", "total"}
        assert each["seconds"]["total"] >= each["seconds"]["draft"] + each["seconds"]["verify"] > 0
    assert any(each["accepted"] for each in rounds) and {t["source_name"] for t in tokens} > {"target"}


def depth(each: dict[str, Any]) -> int:
    found = [0]
    for parent in each["parents"]:
        found.append(found[parent] + 1)
    return max(found)


def test_limits_of_a_request_bound_its_drafts_and_keep_its_text(server: LiveServer) -> None:
    given: dict[str, Any] = {"content": "abcd " * 20, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    text = server.chat(**given).json()["choices"][0]["message"]["content"]
    for limit, most in (({"depth": 2}, 2), ({"nodes": 3}, 3), ({"budget": 7}, 7)):
        found = server.chat(**given, speculation={**limit, "rounds": True}).json()
        assert found["choices"][0]["message"]["content"] == text
        sizes = [len(each["token_ids"]) for each in found["rounds"]]
        assert 0 < max(depth(each) if "depth" in limit else len(each["token_ids"]) for each in found["rounds"]) <= most
        assert "budget" not in limit or sum(sizes) <= most


def test_tokens_of_texts_and_back(server: LiveServer, direct: LLM) -> None:
    found = server.post("/tokenize", {"prompt": "abc é"}).json()
    assert found["tokens"] == direct.tokenizer.encode("abc é", special=True) and found["count"] == len(found["tokens"])
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "abc é"}
    chat = server.post("/tokenize", {"messages": ASK["messages"]}).json()
    assert chat["tokens"] == direct.chat_prompt(ASK["messages"])
    assert server.post("/tokenize", {}).status_code == server.post("/detokenize", {"tokens": "x"}).status_code == 400


def test_the_page_and_the_description_of_the_server(server: LiveServer) -> None:
    with server.client() as client:
        page = client.get("/")
        assert page.status_code == 200 and page.headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in page.headers["content-security-policy"]
        info = client.get("/draftwood/info").json()
        assert info["recipes"] == ["prompt_lookup", "draft_and_verify:skip=a1", "autoregressive"]
        assert info["default_recipe"] == "prompt_lookup" and all(info["lossless"].values())
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert "access-control-allow-origin" not in client.get("/", headers={"origin": "http://evil"}).headers


def test_metrics_count_what_was_drafted(loaded: Loaded) -> None:
    with started(loaded) as server:
        block = server.chat("abcd " * 20, temperature=0, max_tokens=40).json()["metrics"]["speculative_decoding"]
        server.post("/v1/chat/completions", {**ASK, "tools": []})
        with server.client() as client:
            lines = client.get("/metrics").text.splitlines()
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
        name, label = "draftwood:spec_decode_num_{}_total", '{{recipe="prompt_lookup"{}}}'
        assert values[name.format("drafts") + label.format("")] == block["num_spec_steps"]
        assert values[name.format("draft_tokens") + label.format("")] == block["num_draft_tokens"]
        assert values[name.format("accepted_tokens") + label.format("")] == block["num_accepted_draft_tokens"]
        per_position = [value for key, value in values.items() if "per_pos_total" in key]
        assert sum(per_position) == block["num_accepted_draft_tokens"]
        assert values["draftwood:num_requests_running"] == values["draftwood:num_requests_waiting"] == 0
        assert values['draftwood:time_to_first_token_seconds_count{recipe="prompt_lookup"}'] == 1


def test_cached_prompts_are_shared_within_a_key_and_never_across(loaded: Loaded) -> None:
    limits = Limits(keys={"ann": "key-of-ann", "bob": "key-of-bob"})
    with started(loaded, limits=limits) as server, server.client() as client:

        def cached(key: str) -> int:
            body = {**GREEDY, "messages": [{"role": "user", "content": "the same long prompt " * 5}]}
            found = client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
            return found.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("key-of-ann") == 0
        assert cached("key-of-ann") > 80
        assert cached("key-of-bob") == 0
        assert cached("key-of-bob") > 80


def test_wrong_keys_are_refused(loaded: Loaded) -> None:
    import openai

    with started(loaded, limits=Limits(keys={"ann": "right"})) as server:
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic right"},
            {"authorization": "right"},
        ):
            assert httpx.post(f"{server.url}/v1/chat/completions", json=ASK, headers=headers).status_code == 401
        with pytest.raises(openai.AuthenticationError):
            server.openai("wrong").chat.completions.create(**ASK)
        assert server.openai("right").chat.completions.create(**ASK).choices[0].message.content
        with server.client() as client:
            assert client.get("/health").status_code == client.get("/").status_code == 200
            assert client.get("/draftwood/info").status_code == client.get("/v1/models").status_code == 401


def test_too_many_requests_are_told_to_come_back(loaded: Loaded) -> None:
    with started(loaded, max_outstanding=2, limits=Limits(rate=4)) as server:
        assert server.chat(n=3).status_code == 400  # no later time would be better
        server.service.bridge.outstanding += 2
        busy = server.chat()
        server.service.bridge.outstanding -= 2
        assert busy.status_code == 503 and int(busy.headers["retry-after"]) >= 1
        assert server.chat(max_tokens=2).status_code == server.chat(max_tokens=2).status_code == 200
        fast = server.chat(max_tokens=2)
        assert fast.status_code == 429 and int(fast.headers["retry-after"]) >= 1
        assert fast.json()["error"]["type"] == "rate_limit_error"


def test_an_answer_ends_at_its_deadline_with_what_it_has(loaded: Loaded) -> None:
    with started(loaded, ("autoregressive",), config=EngineConfig(max_num_seqs=1)) as server:
        found = server.chat(max_tokens=900, ignore_eos=True, timeout=0.3).json()["choices"][0]
        assert (found["finish_reason"], found["finish_detail"]) == ("abort", "timeout") and found["message"]["content"]
        last = events(server.chat(max_tokens=900, ignore_eos=True, timeout=0.2, stream=True))[-1]["choices"][0]
        assert (last["finish_reason"], last["finish_detail"]) == ("abort", "timeout")
        assert server.idle()


def test_the_client_of_the_guide_works(server: LiveServer, capsys: Any) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "server.md").read_text("utf-8")
    (code,) = (each for each in re.findall(r"```python\n(.*?)```", text, re.S) if "from openai" in each)
    code = code.replace("http://127.0.0.1:8000", server.url).replace('"smollm2"', f'"{MODEL}"')
    exec(compile(code + "\nclient.close()\n", "guide", "exec"), {})
    assert capsys.readouterr().out.strip()
