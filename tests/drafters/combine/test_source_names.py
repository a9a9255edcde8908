"""Every number that a token has for its source has a name, in results and in streams."""

from typing import Any

import pytest
import torch

from draftwood import LLM, SamplingParams
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.drafters.combine.cascade import Cascade
from draftwood.drafters.combine.first_of import FirstOf
from draftwood.drafters.combine.fuse import Fuse
from draftwood.drafters.combine.route import Route
from draftwood.drafters.combine.source_names import source_names
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.drafters.retrieval.max_gram import MaxGram
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.drafters.target_roots import TargetRoots
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

TARGET = tiny_runner(2)
SMALL = DraftModel(TARGET.first_layers(3))


def cascade(small: DraftModel) -> Cascade:
    return Cascade((small,), ((2, 4), (0, 4)), copier=MaxGram(1))


def test_names_are_those_of_the_parts_by_number() -> None:
    named: list[tuple[Any, tuple[str, ...]]] = [
        (NGram(), ("NGram",)),
        (Fuse((SMALL, NGram(), Suffix())), ("DraftModel", "NGram", "Suffix")),
        (FirstOf((NGram(), MaxGram()), SMALL), ("NGram", "MaxGram", "DraftModel")),
        (FirstOf((NGram(),)), ("NGram",)),
        (Route((NGram(), Prediction()), SMALL), ("NGram", "Prediction", "DraftModel")),
        (Route((NGram(),), Fuse((SMALL, NGram()))), ("NGram", "Fuse")),
        (cascade(SMALL), ("DraftModel", "MaxGram")),
        (Lengthened(SMALL), ("DraftModel", "phrases")),
        (VocabTrim(SMALL, torch.arange(9)), ("DraftModel",)),
        (TargetRoots(SMALL), ("DraftModel",)),
    ]
    for drafter, names in named:
        assert source_names(drafter) == names


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "drafter",
    [
        Fuse((SMALL, NGram(n_min=1))),
        FirstOf((NGram(n_min=2),), SMALL),
        cascade(SMALL),
        Lengthened(SMALL, 2, 2, 2),
        Prediction(),
    ],
    ids=lambda drafter: type(drafter).__name__,
)
def test_no_token_has_a_source_without_a_name(drafter: Any) -> None:
    recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(6, 16))
    params = SamplingParams(max_tokens=20, prediction=(1, 2, 3) * 7)
    done = serve(make_engine(TARGET, recipe), [([1 + i, 2, 3] * 9)[: 9 + i] for i in range(8)], params)
    numbers = {source for request in done for source in request.sources}
    assert numbers <= set(range(-1, len(source_names(drafter))))


def test_results_and_streams_name_the_drafter_of_each_token(tmp_path: Any) -> None:
    loaded = load(str(write_folder(tmp_path / "model")))
    text, asked = "", {"max_tokens": 24, "ignore_eos": True}
    with LLM(loaded, "autoregressive") as plain:
        text = plain.generate("hello hello", **asked)
        assert {piece.source_name for piece in text.pieces} == {"target"} and text.source_names == ("Nothing",)
    small = DraftModel(runner_of(loaded).first_layers(1))  # type: ignore[attr-defined]
    drafter = FirstOf((Prediction(),), small)
    recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(4, 8))
    with LLM(loaded, recipe) as llm:
        expected = text.token_ids[:12]  # then the small model drafts
        result = llm.generate("hello hello", prediction=expected, **asked)
        streamed = [
            piece for chunk in llm.stream("hello hello", prediction=expected, **asked) for piece in chunk.pieces
        ]
    assert result.token_ids == text.token_ids and result.source_names == llm.source_names == (
        "Prediction",
        "DraftModel",
    )
    for pieces in (result.pieces, streamed):
        assert {(p.source, p.source_name) for p in pieces} >= {(-1, "target"), (0, "Prediction")}
        assert all(p.source_name == ("target", *llm.source_names)[p.source + 1] for p in pieces)
    assert sum(result.num_tokens_by_source.values()) == 24 and result.num_tokens_by_source["Prediction"] >= 8
