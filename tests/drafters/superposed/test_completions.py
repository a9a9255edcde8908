"""k completions by the model itself: one pass and one KV entry for all of them, and greedy decoding where k is 1."""

from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.core.forward import ForwardInput, ForwardOutput
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.superposed import completions
from draftwood.drafters.superposed.completions import complete
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve

TARGET = tiny_runner(2)
PROMPTS = [[1, 2, 3], [4], [5, 6] * 20, [7, 8, 9, 7, 8]]


class Counting(CpuRunner):
    """Notes the tokens of each pass and the cache's length after each commit."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sizes: list[int] = []
        self.lengths: list[int] = []

    def execute(self, x: ForwardInput, **given: Any) -> ForwardOutput:
        self.sizes.append(x.size)
        return super().execute(x, **given)

    def commit(self, *given: Any) -> None:
        super().commit(*given)
        self.lengths.append(self.length(0))


def ends_never(tokens: Any) -> bool:
    return False


@pytest.mark.parametrize("eos", [(), (11,), tuple(range(0, 61, 3))])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_one_draft_without_n_grams_is_greedy_decoding(prompt: list[int], eos: tuple[int, ...]) -> None:
    engine = make_engine(TARGET, recipes.build("autoregressive", TARGET))
    (plain,) = serve(engine, [prompt], SamplingParams(max_tokens=20), eos=eos)
    runner = TARGET.open(1, 100)
    beam, _ = complete(runner, prompt, Superposition(1, alpha=0.0), 20, lambda tokens: tokens[-1] in eos)
    assert list(beam.best()[0].tokens) == plain.output


def test_the_cache_grows_by_one_entry_a_step_whatever_the_number_of_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "CHUNK", 16)
    runner: Any = Counting(TARGET.model).open(1, 100)
    beam, passes = complete(runner, PROMPTS[2], Superposition(5), 8, ends_never)
    assert runner.sizes == [16, 16, 8, *[1] * 7] and runner.lengths == [16, 32, *range(40, 48)]
    assert passes == len(runner.sizes)
    assert len(beam.best()) == len({draft.tokens for draft in beam.best()}) == 5
    assert {len(draft.tokens) for draft in beam.best()} == {8}


def test_a_prompt_read_in_chunks_gives_the_same_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = complete(TARGET.open(1, 100), PROMPTS[2], Superposition(3), 8, ends_never)
    monkeypatch.setattr(completions, "CHUNK", 7)
    parts, _ = complete(TARGET.open(1, 100), PROMPTS[2], Superposition(3), 8, ends_never)
    assert [draft.tokens for draft in whole.best()] == [draft.tokens for draft in parts.best()]


def test_drafts_that_ended_stand_beside_those_that_go_on() -> None:
    beam, _ = complete(TARGET.open(1, 100), [1, 2, 3], Superposition(4), 10, lambda tokens: tokens[-1] % 4 == 0)
    best = beam.best()
    assert len(best) == 4 and any(draft.tokens[-1] % 4 == 0 for draft in best)
    assert all(token % 4 for draft in best for token in draft.tokens[:-1])


def test_superposed_completions_are_not_the_models_own() -> None:
    """Why they are labelled: with one pass per draft other tokens would follow."""
    beam, _ = complete(TARGET.open(1, 100), [1, 2, 3], Superposition(3, temperature=1.0, alpha=0.0), 6, ends_never)
    second = beam.best()[1].tokens
    own = TARGET.open(1, 100)
    text = torch.tensor([1, 2, 3, *second])
    at = torch.arange(len(text))
    own.admit(0, [])
    logits = own.execute(ForwardInput(text, at * 0, at, at, at - 1, at)).logits.log_softmax(-1)
    path = float(sum(logits[2 + i, token] for i, token in enumerate(second)))
    assert beam.best()[1].chances[-1] != pytest.approx(path, abs=1e-3)
