"""Our recipes as a peer: nothing of an earlier answer helps, and answers are judged by what they promise."""

from dataclasses import replace
from typing import Any

import pytest

from draftwood.bench.spec import text_equality as ties
from draftwood.bench.spec.peers import Settings
from draftwood.bench.spec.peers.ours import Ours
from draftwood.bench.study import timed_answer
from draftwood.controllers.costs.cost import CostModel
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.drafters.on_features.features import Features
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.runners.open import runner_of
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.verifiers.longest_run import LongestRun

PROMPT = [104, 101, 108, 108, 111, 32, 104, 101, 108, 108, 111]


def opened(settings: Settings, **changes) -> Ours:
    made = Ours()
    made.open(replace(settings, **changes))
    return made


def test_an_answer_counts_what_it_did(settings):
    ours = opened(settings)
    plain = ours.answer("autoregressive", PROMPT, 0)
    assert plain["emitted"] == len(plain["tokens"]) == plain["passes"] == 10 and plain["drafted"] == 0
    assert 0 < plain["first_seconds"] < plain["seconds"]
    assert plain["decode_seconds"] == pytest.approx(plain["seconds"] - plain["first_seconds"])
    assert sum(s for part, s in plain["parts"].items() if part != "draft") <= plain["decode_seconds"]
    fast = ours.answer("prompt_lookup", PROMPT, 0)
    assert fast["tokens"] == plain["tokens"] and fast["drafted"] >= sum(fast["accepted_by_position"])


def test_the_same_question_twice_finds_an_empty_cache_and_an_empty_drafter(settings):
    ours = opened(settings)
    first, second = (ours.answer("prompt_lookup", PROMPT, 0) for _ in range(2))
    for key in ("tokens", "passes", "drafted", "accepted_by_position"):
        assert first[key] == second[key]


def drafts(ours: Ours, method: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """Prompt and guessed nodes of every draft that one answer took, in order."""
    made: list[tuple[list[int], int]] = []
    real = Features.propose

    def watched(self: Features, state: Any, rnd: Round, *rest: Any) -> Proposal:
        proposal = real(self, state, rnd, *rest)
        made.append((rnd.requests[0].prompt, proposal.tree.num_nodes - 1))
        return proposal

    monkeypatch.setattr(Features, "propose", watched)
    ours.answer(method, PROMPT, 0)
    return made


def test_a_head_has_drafted_for_another_prompt_before_the_clock_starts(settings, tmp_path, monkeypatch):
    target = runner_of(opened(settings, methods=()).loaded)
    method = f"eagle2:weights={write_head(tmp_path / 'head.safetensors', random_head('eagle', target))}:depth=2:nodes=2"
    ours = opened(settings, methods=(method,))
    with monkeypatch.context() as patch:
        made = drafts(ours, method, patch)
    first = next(i for i, (prompt, _) in enumerate(made) if prompt == PROMPT)
    assert any(nodes for _, nodes in made[:first]) and any(nodes for _, nodes in made[first:])
    # The twin: a prompt of one token, and two to write, would warm the target alone.
    monkeypatch.setattr(timed_answer, "WARM_PROMPT", 1)
    monkeypatch.setattr(timed_answer, "WARM_TOKENS", 2)
    assert not any(nodes for prompt, nodes in drafts(ours, method, monkeypatch) if prompt != PROMPT)


def weight(cost_model: CostModel) -> float:
    return sum(knot.weight for knot in cost_model.knots)


def test_estimates_of_the_machine_are_kept_from_answer_to_answer(settings):
    ours = opened(settings)
    ours.answer("prompt_lookup", PROMPT, 0)
    known = weight(ours.cost_model["prompt_lookup"])
    ours.answer("prompt_lookup", PROMPT, 0)
    assert known > 0 and weight(ours.cost_model["prompt_lookup"]) > known
    assert "autoregressive" not in ours.cost_model  # everybody learns alone


def test_a_disabled_drafter_is_a_failure(settings, monkeypatch: pytest.MonkeyPatch):
    ours = opened(settings)

    def broken(*_: object) -> None:
        raise RuntimeError("no more guesses")

    monkeypatch.setattr(NGram, "propose", broken)
    with pytest.raises(RuntimeError, match=r"disabled: .*no more guesses"):
        ours.answer("prompt_lookup", PROMPT, 0)


def test_judgement_tells_equal_from_different(settings):
    ours = opened(settings)
    tokens = ours.answer("autoregressive", PROMPT, 0)["tokens"]
    assert ours.judge("prompt_lookup", PROMPT, tokens, tokens, 0)["status"] == "identical"
    wrong = [*tokens[:4], (tokens[4] + 1) % 256, *tokens[5:]]
    said = ours.judge("prompt_lookup", PROMPT, wrong, tokens, 0)
    assert (said["status"], said["compared"], said["same_text"]) == ("differs", 5, False) and "token 4" in said["why"]
    assert ours.judge("prompt_lookup", PROMPT, tokens[:-1], tokens, 0)["status"] == "differs"


@pytest.mark.parametrize(
    ("dtype", "status"), [("float32", "near tie"), ("float64", "differs"), ("int8", "differs"), ("auto", "differs")]
)
def test_a_near_tie_excuses_only_a_backend_that_rounds_by_the_size_of_a_pass(
    settings, monkeypatch: pytest.MonkeyPatch, dtype: str, status: str
):
    ours = opened(settings, dtype=dtype)
    tokens = ours.answer("autoregressive", PROMPT, 0)["tokens"]
    other = [*tokens[:4], (tokens[4] + 1) % 256, *tokens[5:]]
    monkeypatch.setattr(ties, "NEAR", float("inf"))  # every parting is near
    assert ours.judge("prompt_lookup", PROMPT, other, tokens, 0)["status"] == status
    monkeypatch.setattr(ties, "NEAR", 0.0)
    assert ours.judge("prompt_lookup", PROMPT, other, tokens, 0)["status"] == "differs"


def test_a_lossy_recipe_is_not_judged(settings):
    ours = opened(settings)
    ours.recipes["prompt_lookup"] = replace(ours.recipes["prompt_lookup"], verifier=LongestRun())
    assert ours.judge("prompt_lookup", PROMPT, [1], [2], 0) == {"status": "not judged", "why": "LongestRun is LOSSY"}


DRAWN, FOLLOWED = "speculative_sampling:draft=first:1:verifier=rejection", "speculative_sampling:draft=first:1"


@pytest.mark.parametrize(("temperature", "unjudged"), [(0.0, []), (1.0, [DRAWN])])
def test_a_rule_that_draws_for_itself_is_judged_only_where_nothing_is_drawn(settings, temperature, unjudged):
    made = Ours()
    facts = made.open(replace(settings, methods=(FOLLOWED, DRAWN), temperature=temperature))
    assert list(facts["not_compared"]) == unjudged
    for method in (FOLLOWED, DRAWN):
        said = made.judge(method, PROMPT, [1], [1], 0)
        assert (said["status"], "same_text" in said) == (
            ("not judged", False) if method in unjudged else ("identical", True)
        )


def test_sampled_answers_follow_plain_decodings_draws_and_the_seed(settings):
    ours = opened(settings, temperature=1.0, seed=3)
    plain, fast, other = (
        ours.answer(m, PROMPT, i)["tokens"]
        for m, i in (("autoregressive", 0), ("prompt_lookup", 0), ("autoregressive", 1))
    )
    assert plain == fast != other


def test_prompts_are_the_chat_templates(settings):
    ours = opened(settings)
    (ids,) = ours.encode(["hi"])["prompts"]
    assert ours.loaded.tokenizer.decode(ids) == "user: hi\nassistant: "


def test_it_runs_on_the_device_of_the_run_and_names_it(settings):
    assert Ours().open(settings)["device"] == "cpu"
    elsewhere = replace(settings, methods=("autoregressive",), device="meta")
    facts = Ours().open(elsewhere)
    assert (facts["device"], facts["precision"]) == ("meta", "bfloat16")


def test_parts_are_not_known_where_passes_are_only_enqueued(settings):
    ours = opened(settings, dtype="float32")
    assert ours.answer("autoregressive", PROMPT, 0)["parts"]
    with as_if_on_a_device():
        assert ours.answer("autoregressive", PROMPT, 0)["parts"] == {}
