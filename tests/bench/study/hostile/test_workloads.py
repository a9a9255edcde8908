"""Workloads are the same for the same seed, and their faults begin midway."""

from pathlib import Path

import pytest

from draftwood.bench.study.hostile.workloads import (
    BATCH,
    FAULTS,
    FORMS,
    HOT,
    NAMES,
    RANDOM_TOKENS,
    SUBJECTS,
    TASKS,
    TOPICS,
    Fault,
    Workload,
    mixed,
    one_token_questions,
    random_prompts,
    workload,
)
from draftwood.core.sampling.params import SamplingParams
from draftwood.models.loading.load import Loaded, load


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder))


def test_random_prompts_depend_on_the_seed_alone_and_hold_no_end_token() -> None:
    found = random_prompts(10, (3, 7), 40, seed=1)
    assert found == random_prompts(10, (3, 7), 40, seed=1) != random_prompts(10, (3, 7), 40, seed=2)
    assert {len(prompt) for prompt in found} == {RANDOM_TOKENS}
    assert {token for prompt in found for token in prompt} == {0, 1, 2, 4, 5, 6, 8, 9}


@pytest.mark.parametrize(("forms", "subjects"), [(FORMS, SUBJECTS), (TASKS, TOPICS)])
def test_no_prompt_returns_before_every_form_had_every_subject(
    forms: tuple[str, ...], subjects: tuple[str, ...]
) -> None:
    assert len(set(mixed(forms, subjects, 24))) == len(forms) * len(subjects) == 24


def test_questions_for_one_token_have_texts_of_many_lengths() -> None:
    found = one_token_questions(40)
    assert len(set(found)) == 40 and len({len(text.split()) for text in found[:10]}) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_has_as_many_groups_as_are_asked_for(loaded: Loaded, name: str) -> None:
    found = workload(name, loaded, 3, 16, seed=5)
    assert found == workload(name, loaded, 3, 16, seed=5)
    assert (len(found.groups), found.batch) == (3, BATCH if name == "one-token-batch" else 1)
    assert found.params.temperature == (HOT if name == "creative-writing" else 0.0)
    assert (found.params.repetition_penalty > 1.0) == (name == "random-answers")
    assert found.params.max_tokens == (1 if name.startswith("one-token") else 16)
    assert (found.fault, found.stays) == FAULTS.get(name, (None, False))
    seeds = [found.of(group, place).seed for group in range(3) for place in range(found.batch)]
    assert len(set(seeds)) == len(seeds)


def test_a_fault_begins_in_the_middle_of_each_answer_or_of_the_run() -> None:
    groups = (((1,),),) * 4
    each = Workload("x", groups, SamplingParams(max_tokens=10), Fault.USELESS)
    assert [each.faulty(group, emitted) for group in (0, 3) for emitted in (0, 4, 5, 9)] == [
        False,
        False,
        True,
        True,
    ] * 2
    run = Workload("x", groups, SamplingParams(max_tokens=10), Fault.USELESS, stays=True)
    expected = [False] * 4 + [False, False, True, True] + [True] * 4
    assert [run.faulty(group, emitted) for group in (1, 2, 3) for emitted in (0, 4, 5, 9)] == expected
    assert not Workload("x", groups, SamplingParams(max_tokens=10)).faulty(3, 9)
