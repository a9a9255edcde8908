"""Grammars: the answer always fits, and speculation does not change it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import LLM
from draftwood.errors import OptionError
from draftwood.grammar import Matching, compiled, json_schema, regex
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["ann", "bob"]},
        "ages": {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 6},
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(Path(tmp_path_factory.mktemp("model")))), dtype="float64")


def matching(loaded: Loaded, grammar: Any) -> Matching:
    return compiled(grammar, loaded.tokenizer, loaded.config.vocab_size, loaded.config.eos_token_ids)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("recipe", ["prompt_lookup", "auto", "draft_and_verify:skip=a1"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_fits_its_schema_and_equals_that_of_plain_decoding(
    loaded: Loaded, recipe: str, temperature: float
) -> None:
    texts: list[list[str]] = []
    for each in ("autoregressive", recipe):
        llm = LLM(loaded, each)
        options: dict[str, Any] = {"temperature": temperature, "max_tokens": 120, "grammar": json_schema(SCHEMA)}
        results = [llm.generate('{"name": "ann", "ages": [1, 2]} {"name": ', seed=seed, **options) for seed in range(4)]
        texts.append([result.text for result in results])
    assert texts[0] == texts[1]
    for text in texts[0]:
        found = json.loads(text)
        assert found["name"] in ("ann", "bob") and all(age <= 9 for age in found["ages"])


def test_a_draft_that_the_grammar_does_not_mask_is_refused_by_the_rule(loaded: Loaded) -> None:
    """The twin: without the grammar in the request the same seed writes something else."""
    llm = LLM(loaded, "prompt_lookup")
    free = llm.generate('{"name": ', temperature=1.0, seed=0, max_tokens=60).text
    with pytest.raises(ValueError):
        json.loads(free)


def test_all_samples_of_a_prompt_fit(loaded: Loaded) -> None:
    llm = LLM(loaded, "prompt_lookup")
    result = llm.generate("x", n=3, temperature=1.0, seed=1, max_tokens=40, grammar=regex("[ab]{3}-[0-9]{2}"))
    assert all(re.fullmatch("[ab]{3}-[0-9]{2}", each.text) for each in result.samples)


def test_a_mask_depends_on_the_text_alone_however_it_is_reached(loaded: Loaded) -> None:
    grammar = matching(loaded, regex("a(b|c)*d"))
    texts = [[], [97], [97, 98], [97, 98, 99, 99], [97, 99], [97, 98, 99], [], [97, 98, 100]]
    first = [grammar(text).clone() for text in texts]
    for text, mask in reversed(list(zip(texts, first, strict=True))):
        assert torch.equal(grammar.fork()(text), mask) and torch.equal(grammar(text), mask)
    assert first[0].nonzero().flatten().tolist() == [97]
    assert first[2].nonzero().flatten().tolist() == [98, 99, 100]
    assert first[-1].nonzero().flatten().tolist() == list(loaded.config.eos_token_ids)


def test_what_follows_a_forbidden_text_does_not_matter_and_spoils_nothing(loaded: Loaded) -> None:
    grammar = matching(loaded, regex("a(b|c)*d"))
    before = grammar([97]).clone()
    assert bool(grammar([97, 120]).all()) and bool(grammar([97, 120, 120]).all())
    assert torch.equal(grammar.fork()([97]), before)
    assert grammar([97, 98]).nonzero().flatten().tolist() == [98, 99, 100]


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (lambda: json_schema({"type": "string", "not": {}}), "not"),
        (lambda: json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: json_schema({"type": "unheard"}), "unheard"),
        (lambda: regex("[a-z"), "unclosed"),
        (lambda: regex("(?=a)b"), "look-around"),
        (lambda: json_schema("{"), "not JSON"),
        (lambda: json_schema([1]), "a schema cannot be"),  # type: ignore[arg-type]
        (lambda: regex(3), "cannot be 3"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(loaded: Loaded, grammar: Any, named: str) -> None:
    with pytest.raises(OptionError, match=named):
        LLM(loaded, "autoregressive").generate("x", grammar=grammar())


@pytest.mark.parametrize(
    "write",
    [
        lambda: json_schema({"type": "integer", "multipleOf": 1000003}),
        lambda: json_schema({"type": "array", "items": {"type": "number", "multipleOf": 10000.3}}),
        lambda: json_schema({"properties": {"a": {"type": "string", "minLength": 10**9}}}),
        lambda: json_schema({"type": "string", "pattern": "x{1000000}"}),
        lambda: regex("x{1000000000}"),
        lambda: regex("((x{1,1000}){1,1000})"),
        lambda: regex("a" * 900000),
    ],
)
def test_what_would_take_minutes_to_compile_is_refused_before(write: Any) -> None:
    with pytest.raises(OptionError, match="hint: at most"):
        write()


def test_usual_sizes_are_not_refused() -> None:
    assert json_schema({"type": "number", "multipleOf": 0.01}).kind == "json"
    assert json_schema({"properties": {"multipleOf": {"type": "string", "maxLength": 10000}}}).kind == "json"
    assert regex("[a-z]{1,64}(-[a-z]{1,64}){0,8}").kind == "regex"


def test_an_engine_refuses_a_grammar_that_is_not_compiled() -> None:
    with pytest.raises(OptionError, match="not compiled"):
        regex("a")([])
