"""An expanded model as a GGUF file: the ordinary loader reads it, and heads that were expanded beside it know it."""

from pathlib import Path

import pytest
import torch

from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.gguf.header import TYPES, read_header
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing import random_gguf
from draftwood.testing.expand import gguf
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.folder import write_expanded
from draftwood.testing.expand.shape import Shape
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.random_gguf import SHAPES
from expansions import logits

WIDE = Shape(3, 320, 6, 3, 128, 640, 49216)
TEXT = list(range(300, 330))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model.gguf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_gguf, "POOL", 1 << 20)
        random_gguf.write(path, SHAPES["tiny"], "Q8_0")
    return path


def far(model: Path, wide: Path) -> float:
    """How far the logits of both are from each other, in standard deviations."""
    old, new = (logits(runner_of(load(str(path), dtype="float32", device="cpu")), TEXT) for path in (model, wide))
    assert float(new[:, 49152:].max()) < -1e5
    return float((new[:, :49152] - old).abs().median() / old.std())


@pytest.mark.parametrize("label", ["Q8_0", "Q4_0"])
@pytest.mark.slow
def test_the_file_says_what_the_model_says_up_to_its_rounding(model: Path, tmp_path: Path, label: str) -> None:
    told: list[tuple[int, int]] = []
    written = write_expanded(
        str(model), WIDE, tmp_path / "wide", Filling(torch.float32), tell=lambda *at: told.append(at), gguf=label
    )
    file = tmp_path / "wide" / "model.gguf"
    assert [path.name for path in (tmp_path / "wide").iterdir()] == ["model.gguf"]
    assert written.num_bytes == file.stat().st_size and len(told) == 5
    labels = {name: TYPES[info.type][0] for name, info in read_header(file).tensors.items()}
    assert labels["blk.2.attn_q.weight"] == label and labels["output.weight"] == "Q8_0"
    assert far(model, file) < {"Q8_0": 0.03, "Q4_0": 0.3}[label]


@pytest.mark.slow
def test_control_rows_in_another_order_are_found(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_heads", lambda name, config: 0)
    write_expanded(str(model), WIDE, tmp_path / "wide", Filling(torch.float32), gguf="Q8_0")
    assert far(model, tmp_path / "wide" / "model.gguf") > 0.1


@pytest.mark.slow
def test_a_head_drafts_beside_the_file(model: Path, tmp_path: Path) -> None:
    target = runner_of(load(str(model), device="cpu"))
    head = write_head(tmp_path / "mine.safetensors", random_head("eagle", target))
    written = write_expanded(str(model), WIDE, tmp_path / "wide", Filling(torch.float32), [str(head)], gguf="Q8_0")
    file = str(tmp_path / "wide" / "model.gguf")
    options = {"weights": str(written.heads[0]), "widths": (2, 1)}
    plain = LLM(file, recipe="autoregressive", device="cpu").generate("hello", max_tokens=12)
    drafted = LLM(file, recipe="eagle", device="cpu", **options).generate("hello", max_tokens=12, temperature=0)
    assert drafted.token_ids == plain.token_ids and drafted.stats.draft_tokens > 0


def test_what_cannot_be_a_gguf_file_is_refused(model: Path, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    for source, shape, label, said in (
        (str(model), WIDE, "Q5_K", "gguf cannot be 'Q5_K'"),
        (str(folder), Shape(3, 64, 8, 2, 16, 64, 300), "Q8_0", "takes its tokenizer from a GGUF file"),
        (str(model), Shape(3, 330, 6, 3, 128, 640, 49216), "Q8_0", "blocks have 32 columns"),
    ):
        with pytest.raises(OptionError, match=said):
            write_expanded(source, shape, tmp_path / "wide", Filling(torch.float32), gguf=label)
    assert not (tmp_path / "wide").exists()
