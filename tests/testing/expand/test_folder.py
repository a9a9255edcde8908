"""Expanded folders: loaded by the ordinary code, with heads that name them, and nothing of them too large for memory."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from draftwood import recipes
from draftwood.core.config import EngineConfig
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.files.store import to_bytes
from draftwood.errors import CompositionError, OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.expand import folder as folders
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.folder import write_expanded
from draftwood.testing.expand.shape import Shape
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from expansions import logits

WIDE = Shape(3, 64, 8, 2, 16, 64, 300)
EXACT = Filling(torch.float64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = runner_of(load(str(model), dtype="float64", device="cpu"))
    made = random_head("eagle", target)
    return write_head(tmp_path_factory.mktemp("head") / "mine.safetensors", made)


def test_a_folder_is_loaded_and_says_the_same(model: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    written = write_expanded(str(model), WIDE, tmp_path / "wide", EXACT, tell=lambda *at: told.append(at))
    old, new = (load(str(path), dtype="float64", device="cpu") for path in (model, tmp_path / "wide"))
    assert new.config.num_layers == 3 and new.config.vocab_size == 300 and new.fingerprint != old.fingerprint
    text = list(range(40))
    theirs, ours = (logits(runner_of(each), text) for each in (old, new))
    assert float((ours[:, :258] - theirs).abs().max()) < 1e-9
    answers = [LLM(each).chat("hello there", max_tokens=30) for each in (old, new)]
    assert answers[0].token_ids == answers[1].token_ids and answers[0].text == answers[1].text
    assert told[-1] == (written.num_bytes, written.num_bytes) and len(told) == 5
    assert written.num_bytes == 8 * written.num_parameters
    shards = sorted((tmp_path / "wide").glob("*.safetensors"))
    assert len(shards) == 5 and sum(path.stat().st_size for path in shards) > written.num_bytes
    modes = {path.stat().st_mode for path in (tmp_path / "wide").iterdir() if path.is_file()}
    assert len(modes) == 1
    raw = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert raw["torch_dtype"] == "float64" and raw["architectures"] == ["LlamaForCausalLM"]


def test_transformers_runs_it(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_expanded(str(model), WIDE, tmp_path / "wide", EXACT)
    text = list(range(40))
    old = logits(runner_of(load(str(model), dtype="float64", device="cpu")), text)
    new = logits(runner_of(load(f"hf:{tmp_path / 'wide'}", dtype="float64", device="cpu")), text)
    assert float((new[:, :258] - old).abs().max()) < 1e-3  # its norms are float32


def test_int8_runs_it(model: Path, tmp_path: Path) -> None:
    write_expanded(str(model), WIDE, tmp_path / "wide", Filling(torch.bfloat16))
    old, new = (load(str(path), dtype="int8") for path in (model, tmp_path / "wide"))
    text = list(range(40))
    theirs, ours = (logits(runner_of(each), text) for each in (old, new))
    far = (ours[:, :258] - theirs).abs()
    assert float(far.median()) < 0.2 * float(theirs.std()) and float(ours[:, 258:].max()) < -1e5


def test_a_head_is_bound_to_the_new_target(model: Path, head: Path, tmp_path: Path) -> None:
    written = write_expanded(str(model), WIDE, tmp_path / "wide", EXACT, [str(head)])
    assert written.heads == (tmp_path / "wide" / "heads" / "mine.safetensors",)
    old, new = (runner_of(load(str(path), dtype="float64", device="cpu")) for path in (model, tmp_path / "wide"))
    weights = str(written.heads[0])
    assert recipes.build("eagle", new, weights=weights).drafter
    with pytest.raises(CompositionError, match="features 64 wide"):
        load_head(weights, old, "eagle", "eagle")
    with pytest.raises(CompositionError, match="features 32 wide"):
        load_head(str(head), new, "eagle", "eagle")
    texts = []
    for target, file in ((model, head), (tmp_path / "wide", written.heads[0])):
        llm = LLM(str(target), recipe="eagle", dtype="float64", device="cpu", weights=str(file))
        answer = llm.chat("hello there", max_tokens=30)
        texts.append((answer.token_ids, answer.stats.drafted, answer.stats.accepted))
    assert texts[0] == texts[1]


def test_what_does_not_fit_is_refused_before_anything_is_written(model: Path, head: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "other", seed=1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.safetensors").write_bytes(head.read_bytes())
    target = runner_of(load(str(model), dtype="float64", device="cpu"))
    (tmp_path / "medusa.safetensors").write_bytes(to_bytes(random_head("medusa", target)))
    for source, shape, heads, said in (
        (str(model), Shape(1, 64, 8, 2, 16, 64, 300), [], "layers: 1, the model has 2"),
        (f"hf:{model}", WIDE, [], "transformers runs it"),
        (str(model), WIDE, ["eagle3"], "no head of kind 'eagle3' ships for this model"),
        (str(model), WIDE, ["nothing"], "no head is called 'nothing'"),
        (str(model), WIDE, [str(head), str(tmp_path / "b" / "mine.safetensors")], "two heads would be written"),
        (str(other), WIDE, [str(head)], "was trained for another target"),
        (str(model), WIDE, [str(tmp_path / "medusa.safetensors")], "heads of kind 'medusa' cannot be expanded"),
    ):
        with pytest.raises(OptionError) as caught:
            write_expanded(source, shape, tmp_path / "wide", EXACT, heads)
        assert said in str(caught.value)
    assert not list(tmp_path.glob("wide*"))


def test_a_disk_that_fills_up_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = folders.save_file

    def full(tensors: object, path: Path, **more: object) -> None:
        if "00003" in path.name:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save(tensors, path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "save_file", full)
    with pytest.raises(OptionError, match="cannot be written: I/O error: No space left"):
        write_expanded(str(model), WIDE, tmp_path / "wide", EXACT)
    assert list(tmp_path.iterdir()) == []


def test_one_part_is_in_memory_at_a_time(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is written before the next one is made."""
    seen: list[str] = []
    make, save = folders.parts, folders.save_file

    def made(*given: object) -> object:
        for part in make(*given):  # type: ignore[arg-type]
            seen.append("made")
            yield part

    def saved(*given: object, **more: object) -> None:
        seen.append("saved")
        save(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "parts", made)
    monkeypatch.setattr(folders, "save_file", saved)
    write_expanded(str(model), WIDE, tmp_path / "wide", EXACT)
    assert seen == ["made", "saved"] * 5


PROMPTS = ("Why is the sky blue?", "Name five fruits.", "Write one line about rain.")


@pytest.mark.long
def test_the_embedded_model_says_the_same_in_a_wider_shape(tmp_path: Path) -> None:
    """float32, 30 layers, with the head that ships: texts, drafts and acceptance."""
    shape = Shape(30, 640, 12, 4, 64, 1664, 49152)
    written = write_expanded("smollm2", shape, tmp_path / "wide", Filling(torch.float32), ["eagle3"])
    found = []
    for model, file in (("smollm2", "auto"), (str(tmp_path / "wide"), str(written.heads[0]))):
        loaded = load(model, dtype="float32", device="cpu")
        short = EngineConfig(max_num_seqs=1, max_model_len=256)
        own = LLM(loaded, recipe="autoregressive", config=short)
        plain = [own.chat(p, max_tokens=20).token_ids for p in PROMPTS]
        llm = LLM(loaded, recipe="eagle3", config=short, weights=file, depth=3, beam=2, nodes=6)
        answers = [llm.chat(p, max_tokens=20) for p in PROMPTS]
        assert plain == [answer.token_ids for answer in answers]
        found.append((plain, [(a.stats.draft_tokens, tuple(a.stats.accepted), a.stats.target_passes) for a in answers]))
    print(found[0][1])
    assert found[0] == found[1]
    assert sum(sum(accepted) for _, accepted, _ in found[0][1]) > 20
