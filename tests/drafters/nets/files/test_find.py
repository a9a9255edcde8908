"""A head is believed only if it fits its target, and what is wrong with it is said by name."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from draftwood import recipes
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.files.store import Head
from draftwood.errors import CompositionError, DraftwoodError, OptionError, WeightsError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner_of(load(str(write_folder(tmp_path_factory.mktemp("models") / "tiny")), dtype="float32"))


def refused(path: Path, target: Any = None, kind: str = "eagle3") -> DraftwoodError:
    with pytest.raises(DraftwoodError) as found:
        load_head(str(path), target or tiny_runner(), kind, kind)
    assert str(path) in str(found.value), "the file is named"
    return found.value


def edited(path: Path, head: Head, change: Any) -> Path:
    """The head's file with its tensors and its note changed."""
    write_head(path, head)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        note = json.loads(file.metadata()["draftwood"])
    change(tensors, note)
    save_file(tensors, path, metadata={"draftwood": json.dumps(note)})
    return path


def test_sizes_of_another_target(tmp_path: Path) -> None:
    path = tmp_path / "h.safetensors"
    for config, said in (
        (replace(CONFIG, hidden_size=64, head_dim=16), "reads features 64 wide, the target's are 32"),
        (replace(CONFIG, vocab_size=99), "has a vocabulary of 99 tokens, the target of 61"),
        (replace(CONFIG, num_layers=12), r"taps layers [6, 11], the target has taps 0 to 4"),
    ):
        error = refused(write_head(path, random_head("eagle3", tiny_runner(config=config))))
        assert isinstance(error, CompositionError) and said in str(error)
        assert "\nhint: it is for another model; draftwood train eagle3 --target TARGET" in str(error)


def test_kind_of_another_recipe(tmp_path: Path) -> None:
    head = random_head("medusa", tiny_runner())
    said = str(refused(write_head(tmp_path / "h.safetensors", replace(head, record={}))))
    assert "holds weights of kind 'medusa', 'eagle3' was asked for\nhint: draftwood train eagle3 --target" in said
    said = str(refused(write_head(tmp_path / "named.safetensors", replace(head, record={"recipe": "medusa"}))))
    assert "hint: recipe medusa takes them; draftwood train eagle3 --target" in said


def test_head_of_another_target_is_refused_by_name(tmp_path: Path, tiny: Runner) -> None:
    head = replace(random_head("eagle3", tiny), target="beef", record={"target": "llama-7b"})
    error = str(refused(write_head(tmp_path / "h.safetensors", head), tiny))
    assert "was trained for llama-7b (beef), not for" in error and tiny.info.fingerprint in error
    assert f"draftwood train eagle3 --target {tiny.info.name} --out FOLDER" in error


def ids(*values: int) -> Any:
    def change(tensors: dict[str, Any], note: Any) -> None:
        tensors["ids"] = torch.cat([torch.tensor(values), tensors["ids"][len(values) :].long()]).int()

    return change


def drop(tensors: dict[str, Any], note: Any) -> None:
    del tensors["fc.weight.scale"]


def nan(tensors: dict[str, Any], note: Any) -> None:
    tensors["norm"][3] = torch.nan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (ids(-1), "for example -1"),
        (ids(61), "for example 61"),
        (ids(1, 1), "name a token twice"),
        (lambda t, n: t.update(ids=t["ids"][:-1]), "ids of shape [60] do not fit 61 rows"),
        (lambda t, n: t.update(ids=t["ids"].float()), "do not fit 61 rows"),
        (nan, "norm holds something that is no number"),
        (drop, "fc.weight has no scales"),
        (lambda t, n: t.update({"fc.weight.scale": t["fc.weight.scale"][:, :1].contiguous()}), "has scales of shape"),
        (lambda t, n: n.pop("config"), "does not say what it is"),
        (lambda t, n: n.update(target=None), "does not say what it is"),
        (lambda t, n: n.update(format=9), "has format 9"),
    ],
)
def test_damage_is_named(tmp_path: Path, change: Any, said: str) -> None:
    path = edited(tmp_path / "h.safetensors", random_head("eagle3", tiny_runner()), change)
    error = refused(path)
    assert isinstance(error, WeightsError) and said in str(error)


def test_files_that_are_no_heads(tmp_path: Path) -> None:
    path = write_head(tmp_path / "h.safetensors", random_head("eagle3", tiny_runner()))
    whole = path.read_bytes()
    for content in (pickle.dumps({"fc.weight": 1}), whole[:-50], whole[:30], b""):
        path.write_bytes(content)
        error = refused(path)
        assert isinstance(error, WeightsError) and "is no drafter of ours" in str(error) and "hint:" in str(error)
    assert "no such file" in str(refused(tmp_path / "missing")) and "is a folder" in str(refused(tmp_path))
    write_head(tmp_path / "eagle3.safetensors", random_head("eagle3", tiny_runner()))
    assert f"hint: weights={tmp_path / 'eagle3.safetensors'}" in str(refused(tmp_path))


@pytest.mark.parametrize("recipe", ["eagle", "eagle2", "eagle3", "medusa", "hydra", "mlp_speculator", "fast_draft"])
def test_recipe_without_weights_ends_with_the_command_that_trains_them(recipe: str, tiny: Runner) -> None:
    with pytest.raises(OptionError, match="ship for this target") as found:
        recipes.build(recipe, tiny)
    command = f"draftwood train {recipe} --target {tiny.info.name} --out FOLDER"
    assert str(found.value).endswith(f"hint: {command}, then --option weights=FOLDER/{recipe}.safetensors")
