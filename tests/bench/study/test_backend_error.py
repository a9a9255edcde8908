from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.bench.statistics import Ratio
from draftwood.bench.study.backend_error import (
    GREEDY,
    OVERALL,
    SAMPLED,
    TURNS,
    Score,
    Text,
    before_a_turn,
    compare,
    logits,
    score,
    summary,
    write_texts,
)
from draftwood.core.config import EngineConfig
from draftwood.llm import LLM
from draftwood.models.backends import int8_weights
from draftwood.models.backends.choose import int8_decoder
from draftwood.models.backends.quantised_blocks import pack, unpack
from draftwood.models.loading.load import Loaded, load, load_weights
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.table_model import TableModel, context_free

MOST, LEAST = 1.05, 0.9  # a model of 32 numbers a row has more near ties than one of 576


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose weights are whole steps already, as those of a quantised file are: only sums are rounded."""
    made = write_folder(tmp_path_factory.mktemp("steps"))
    file = made / "model.safetensors"
    save_file({name: unpack(pack(w)).contiguous() if w.ndim == 2 else w for name, w in load_file(file).items()}, file)
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


@pytest.fixture(scope="module")
def texts(reference: Loaded) -> list[Text]:
    return write_texts(reference, 6, 40)


def spoiled(folder: Path, by: float) -> Loaded:
    """The int8 backend with the matrices of one layer scaled, under the right weights' fingerprint."""
    backend = load(str(folder), dtype="int8")
    config, tensors, _ = load_weights(str(folder))
    wrong = {name: t * by if name.startswith("model.layers.1.") and t.ndim == 2 else t for name, t in tensors.items()}
    return replace(backend, model=int8_decoder(config, int8_weights.from_tensors(config, wrong)))


def test_texts_are_half_greedy_and_half_drawn_and_the_seed_decides(reference: Loaded, texts: list[Text]):
    assert [t.kind for t in texts] == [GREEDY, SAMPLED] * 3
    ours = [tuple(reference.tokenizer.encode_chat([{"role": "user", "content": turn}])) for turn in TURNS]
    assert [t.prompt for t in texts[:4]] == ours[:4]
    assert all(t.prompt not in ours for t in texts[4:]) and texts[4].prompt != texts[5].prompt
    assert all(0 < len(t.answer) <= 40 for t in texts)
    again, other = write_texts(reference, 6, 40), write_texts(reference, 6, 40, seed=9)
    assert again == texts and other[0] == texts[0] and other[1] != texts[1] and other[4] != texts[4]


def test_a_turn_begins_where_two_conversations_part(reference: Loaded):
    llm = LLM(reference, "autoregressive", config=EngineConfig(max_num_seqs=1))
    assert reference.tokenizer.decode(before_a_turn(llm)) == "user: "


def test_our_turns_are_varied():
    assert len(set(TURNS)) == len(TURNS) == 24


def test_int8_is_nearly_float32(folder: Path, reference: Loaded, texts: list[Text]):
    found = compare(reference, load(str(folder), dtype="int8"), texts)
    assert [q.kind for q in found] == [GREEDY, SAMPLED, OVERALL]
    greedy, sampled, overall = found
    assert overall.positions == greedy.positions + sampled.positions == sum(len(t.answer) for t in texts)
    assert overall.misses(MOST, LEAST) == []
    assert 0 < overall.divergence < 0.01 and overall.difference > 0


def test_a_damaged_backend_is_found(folder: Path, reference: Loaded, texts: list[Text]):
    overall = compare(reference, spoiled(folder, 1.3), texts)[-1]
    assert len(overall.misses(MOST, LEAST)) == 2
    honest = compare(reference, spoiled(folder, 1.0), texts)[-1]
    assert honest.misses(MOST, LEAST) == []


def test_float32_against_itself_differs_nowhere(reference: Loaded, texts: list[Text]):
    overall = compare(reference, reference, texts)[-1]
    assert overall.ratio == Ratio(1.0, 1.0, 1.0, 6) and overall.agreement == 1
    assert overall.divergence == overall.difference == 0


def test_other_weights_are_no_backend_of_the_same_model(reference: Loaded, texts: list[Text]):
    with pytest.raises(ValueError, match="other weights"):
        compare(reference, replace(reference, fingerprint="another"), texts)


def test_scores_are_those_of_known_distributions():
    p, q = (CpuRunner(TableModel(2, context_free(x))) for x in ([0.75, 0.25], [0.5, 0.5]))
    found = score(p, q, Text(GREEDY, (0, 1), (0, 1, 0)))
    log = torch.tensor([0.75, 0.25, 0.5], dtype=torch.float64).log()
    assert found.positions == 3 and found.agree == 3
    assert found.reference == pytest.approx(-float(2 * log[0] + log[1])) and found.backend == pytest.approx(
        -3 * float(log[2])
    )
    assert found.divergence == pytest.approx(3 * float(0.75 * (log[0] - log[2]) + 0.25 * (log[1] - log[2])))
    assert found.difference == pytest.approx(float(log[2] - log[1]))


def test_each_token_of_the_answer_is_predicted_from_what_stands_before_it():
    target = CpuRunner(TableModel(3, lambda text: [0.8 if t == text[-1] else 0.1 for t in range(3)]))
    assert logits(target, Text(GREEDY, (2, 0), (1, 2, 2))).argmax(-1).tolist() == [0, 1, 2]


def test_long_texts_weigh_more_than_short_ones():
    found = summary(
        OVERALL, [Score(GREEDY, 10, 10.0, 11.0, 10, 0.5, 0.1), Score(SAMPLED, 30, 60.0, 60.0, 27, 0.1, 0.4)]
    )
    assert found.ratio.value == pytest.approx(torch.tensor(1 / 40).exp().item()) and found.ratio.pairs == 2
    assert found.backend / found.reference == pytest.approx(found.ratio.value)
    assert (found.agreement, found.difference) == (37 / 40, 0.4) and found.divergence == pytest.approx(0.6 / 40)


def test_a_backend_that_rules_the_text_out_is_bad_and_not_an_error():
    found = summary(OVERALL, [Score(GREEDY, 1, 1.0, 1e6, 0, 1e6, 1e6)])
    assert len(found.misses(1.01, 0.98)) == 2


def test_a_backend_with_nan_logits_is_never_good_enough():
    p, broken = (CpuRunner(TableModel(2, context_free(x))) for x in ([0.75, 0.25], [float("nan")] * 2))
    found = summary(OVERALL, [score(p, broken, Text(GREEDY, (0,), (0, 1)))])
    assert any("perplexity" in miss for miss in found.misses(1e9, 0.0))
    assert found.difference != found.difference  # not a number either
