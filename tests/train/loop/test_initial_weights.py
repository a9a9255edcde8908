"""A net may begin with the weights of a head that fits it; one that does not is refused by name."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.drafters.nets.files import find
from draftwood.drafters.nets.files.store import Head, read, to_bytes
from draftwood.errors import CompositionError, DraftwoodError, OptionError, TrainError
from draftwood.models.loading.folder_cache import sha256
from draftwood.models.loading.load import Loaded
from draftwood.train.loop.measure import head_file
from draftwood.train.loop.session import Session, TrainSettings
from draftwood.train.loop.trainer import Report
from tiny_run import write_data

pytestmark = pytest.mark.slow  # whole runs

NAMES = ("eagle3", "medusa")


@pytest.fixture(scope="module")
def heads(tiny: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of heads that have learned a little, from the data beside it."""
    place = tmp_path_factory.mktemp("start")
    assert Session(tiny, settings(place, *NAMES, "eagle", out="heads")).run()
    return place / "heads"


def settings(place: Path, *names: str, out: str = "out", **more: Any) -> TrainSettings:
    data = more.pop("data", None) or place / "data"
    if not data.exists():
        write_data(data)
    chosen = {"steps": 6, "draft_vocab_size": 64, "batch_tokens": 256, "prompts": 1, **more}
    return TrainSettings(recipes=names, data=(data,), out=place / out, **chosen)


def weights(session: Session, name: str) -> dict[str, torch.Tensor]:
    net = session.plans[name].net
    assert net is not None
    return {key: t.clone() for key, t in net.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[key]) for key, t in a.items())


def test_nets_begin_with_the_weights_of_a_folder_or_a_file(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, *NAMES, start=str(heads)))
    for name in NAMES:
        file = head_file(heads, name)
        assert same(weights(session, name), read(file).tensors)
        alone = Session(tiny, settings(tmp_path, name, start=str(file)))
        assert same(weights(alone, name), read(file).tensors)
        fresh = Session(tiny, settings(tmp_path, name))
        assert not same(weights(fresh, name), read(file).tensors), "a twin: fresh weights are others"


def test_head_says_what_it_started_from(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    assert Session(tiny, settings(tmp_path, *NAMES, start=str(heads), seed=1)).run()
    for name in NAMES:
        said = read(head_file(tmp_path / "out", name)).record["started_from"]
        assert said["name"] == f"{name}.safetensors" and said["sha256"] == sha256(head_file(heads, name))
        assert said["record"]["steps"] == 6 and said["record"]["data"]["dialogues"] == 24
    assert "started_from" not in read(head_file(heads, "medusa")).record


def test_tokens_may_be_others_where_rows_are_the_targets(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, "eagle3", start=str(heads), draft_vocab_size=100))
    assert len(session.keep) >= 100 and same(weights(session, "eagle3"), read(head_file(heads, "eagle3")).tensors)
    own: dict[str, Any] = {"options": {"eagle3": {"own_lm_head": True}}}
    assert Session(tiny, settings(tmp_path, "eagle3", out="own", **own)).run()
    file = str(head_file(tmp_path / "own", "eagle3"))
    assert Session(tiny, settings(tmp_path, "eagle3", start=file, **own)).starts, "the same tokens fit"
    others: list[dict[str, Any]] = [{"draft_vocab_size": 65}, {"data": write_data(tmp_path / "other", seed=9)}]
    for other in others:
        with pytest.raises(
            CompositionError,
            match=r"(?s)has an LM head of its own for 66 tokens.*hint: the data and --draft-vocab-size",
        ):
            Session(tiny, settings(tmp_path, "eagle3", start=file, **own, **other))


def test_larger_nets_begin_as_the_smaller_heads_that_ship(
    tiny: Loaded, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="no weights of kind 'eagle' ship"):
        Session(tiny, settings(tmp_path, "griffin", start="auto"))
    shutil.copy(head_file(heads, "eagle"), tmp_path / "tiny.eagle.safetensors")
    monkeypatch.setattr(find.shipped, "__file__", str(tmp_path / "__init__.py"))
    base = read(head_file(heads, "eagle")).tensors
    for name, new in (("griffin", "side_up"), ("koala", "more.0")):
        session = Session(tiny, settings(tmp_path, name, start="auto"))
        assert session.starts[name].name == "tiny.eagle.safetensors"
        found = weights(session, name)
        assert all(torch.equal(found[key], t) for key, t in base.items() if key != "layer.down.weight")
        assert torch.equal(found["layer.down.weight"][: len(base["layer.down.weight"])], base["layer.down.weight"])
        assert any(key.startswith(new) for key in found)
    with pytest.raises(CompositionError, match="holds weights of kind 'medusa', 'griffin' is trained here"):
        Session(tiny, settings(tmp_path, "griffin", start=str(head_file(heads, "medusa"))))
    medusa = {"koala": {"flavour": "medusa", "stages": 3}}
    with pytest.raises(CompositionError, match="stages was 4, now it is 3"):
        Session(tiny, settings(tmp_path, "koala", start=str(head_file(heads, "medusa")), options=medusa))


def test_shipped_head_is_found_by_its_target(
    tiny: Loaded, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="no weights of kind 'eagle3' ship"):
        Session(tiny, settings(tmp_path, "eagle3", start="auto"))
    shutil.copy(head_file(heads, "eagle3"), tmp_path / "tiny.eagle3.safetensors")
    monkeypatch.setattr(find.shipped, "__file__", str(tmp_path / "__init__.py"))
    session = Session(tiny, settings(tmp_path, "eagle3", start="auto"))
    assert session.starts["eagle3"].name == "tiny.eagle3.safetensors"


def changed(path: Path, place: Path, **more: Any) -> str:
    """A copy of a head that says something else about itself."""
    head = read(path)
    config = more.pop("config", head.config)
    new = Head(config, head.tensors, head.ids, more.get("target", head.target), {"target": "llama"})
    place.write_bytes(to_bytes(new))
    return str(place)


def test_head_of_another_kind_target_or_shape_is_refused(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    def refused(start: str, said: str, *names: str, **more: Any) -> None:
        with pytest.raises(DraftwoodError, match=said):
            Session(tiny, settings(tmp_path, *(names or ("eagle3",)), start=start, **more))

    file, copy = head_file(heads, "eagle3"), tmp_path / "copy.safetensors"
    refused(str(head_file(heads, "medusa")), r"(?s)kind 'medusa', 'eagle3' is trained here\nhint: ")
    refused(changed(file, copy, target="beef"), r"(?s)copy.* was trained for llama \(beef\), not for .*hint: ")
    refused(changed(file, copy, target=""), r"\(no fingerprint\)")
    config = read(file).config
    narrow = replace(config, layer=replace(config.layer, rope_theta=7.0))
    refused(changed(file, copy, config=narrow), r"(?s)another shape: rope_theta was 7.0, now.*hint: the same --option")
    refused(str(file), r"taps was \(1, 2\), now it is \(1,\)", options={"eagle3": {"taps": (1,)}})
    refused(str(head_file(heads, "medusa")), "stages was 4, now it is 2", "medusa", options={"medusa": {"stages": 2}})
    refused(str(file), r"(?s)one file cannot start 2 nets.*hint: a folder", *NAMES)
    refused(str(tmp_path / "none"), r"(?s)--from .*none: there is no such file\nhint:")
    refused(str(heads), r"there is no .*hydra.safetensors", "hydra")
    refused(str(tmp_path), r"there is no .*eagle3.safetensors")
    refused(str(file), "none of the trained recipes has weights", "vocab_trim")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(file.read_bytes()[:-9])
    refused(str(torn), "torn.safetensors")


def test_recipes_without_weights_need_none(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    session = Session(tiny, settings(tmp_path, "medusa", "vocab_trim", start=str(head_file(heads, "medusa"))))
    assert list(session.starts) == ["medusa"]


def test_run_does_not_start_from_what_it_writes(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    file = shutil.copy(head_file(heads, "medusa"), tmp_path / "out" / "medusa.safetensors")
    for start in (file, tmp_path / "out"):
        with pytest.raises(OptionError, match=r"(?s)is what this run will write.*hint: another --out"):
            Session(tiny, settings(tmp_path, "medusa", start=str(start)))


def test_killed_run_ends_like_an_unbroken_one_and_keeps_its_start(tiny: Loaded, heads: Path, tmp_path: Path) -> None:
    def run(out: str, start: Path | None, kill: int | None = None) -> bytes:
        def watch(report: Report) -> None:
            if report.step == kill:
                raise RuntimeError("killed")

        file = None if start is None else str(start)
        Session(tiny, settings(tmp_path, "eagle3", out=out, steps=9, start=file, save_every=1e-9)).run(watch)
        return head_file(tmp_path / out, "eagle3").read_bytes()

    mine, whole = head_file(heads, "eagle3"), run("whole", head_file(heads, "eagle3"))
    for kill in (2, 6):
        with pytest.raises(RuntimeError):
            run("broken", mine, kill)
    other = Path(changed(mine, tmp_path / "other.safetensors"))
    for start, said in (
        (other, "from was eagle3 .*, now it is eagle3"),
        (None, "from was eagle3 .*, now it is nothing"),
    ):
        with pytest.raises(TrainError, match=f"(?s)holds another run: {said}.*hint: another --out"):
            run("broken", start)
    assert run("broken", mine) == whole
    assert run("fresh", None) != whole, "a twin: without it the run ends elsewhere"
