"""The `speculators` package and we read each other's files and draft the same.

Its own code runs in an interpreter of its own, because it wants an older transformers than we do:

    python3.11 -m venv FOLDER; FOLDER/bin/pip install torch==2.13.0
    FOLDER/bin/pip install speculators==0.9.0 torch==2.13.0 'transformers<=5.19'
    FOLDER/bin/pip uninstall torchvision torchaudio
    DRAFTWOOD_SPECULATORS=FOLDER/bin/python make test ARGS='-k speculators -s'
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from draftwood.drafters.nets.files.store import Head
from draftwood.errors import WeightsError
from draftwood.models.loading.hf_config import unparse
from draftwood.testing.parts.tiny import tiny_weights
from draftwood.train.formats.conversion import Target
from draftwood.train.formats.roundtrip import LIMIT, Input
from format_heads import VOCAB, Conversion, columns, edit, folder_of, head, logits, read, target

OTHER = os.environ.get("DRAFTWOOD_SPECULATORS")
PEER = Path(__file__).with_name("speculators_peer.py")
STEPS, INDEX = 3, 4  # as in the peer
needs_package = pytest.mark.skipif(
    not OTHER, reason="DRAFTWOOD_SPECULATORS names no interpreter that has the speculators package"
)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True, "norm_before_fc": True},
    {"norm_output": True, "fc_norm": True, "norm_before_residual": True},
]
CASES = [(options, rows) for options in VARIANTS for rows in (None, 20)]
OURS = {"fc_norm": "norm_features", "norm_before_fc": "norm_fused"}


def ask(what: str, *folders: Path) -> None:
    assert OTHER
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([OTHER, PEER, what, *folders], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def inputs(folder: Path) -> Input:
    """Written for the peer, and in our own words: index 4's pairs, then one given token a draft."""
    noise = torch.Generator().manual_seed(11)
    features = torch.randn(INDEX + STEPS, 3 * 32, generator=noise)
    drafted = torch.randint(VOCAB, (INDEX + STEPS,), generator=noise)
    embedding = target().embedding
    given = {"features": features, "tokens": drafted, "embedding": embedding}
    torch.save(given, folder.with_suffix(".inputs.pt"))
    pairs = list(features[: INDEX + 1].split(32, dim=-1))
    return Input(pairs, drafted, embedding[drafted], target().lm_head)


def target_folder(folder: Path) -> Target:
    """On disk, because the package opens the verifier that a head names."""
    to = target()
    folder.mkdir()
    weights = tiny_weights(0, to.config) | {"model.embed_tokens.weight": to.embedding, "lm_head.weight": to.lm_head}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(unparse(to.config)))
    return replace(to, name=str(folder))


@needs_package
@pytest.mark.slow
def test_what_we_write_drafts_the_same_there(tmp_path: Path):
    to, made = target_folder(tmp_path / "target"), {}
    for i, (options, rows) in enumerate(CASES):
        ours = head("eagle3", rows=rows, **{OURS.get(name, name): on for name, on in options.items()})
        folder = folder_of("speculators", tmp_path / f"ours{i}", ours, Conversion(to))
        made[folder] = ours, inputs(folder)
    ask("load", *made)
    for (folder, (ours, given)), (options, _) in zip(made.items(), CASES, strict=True):
        compare("ours, run by speculators", folder, ours, given, options)


@needs_package
@pytest.mark.slow
def test_what_it_saves_drafts_the_same_here(tmp_path: Path):
    shape = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    shape |= {"vocab_size": VOCAB, "rms_norm_eps": 1e-5}
    made = {}
    for i, (options, rows) in enumerate(CASES):
        folder = tmp_path / f"theirs{i}"
        ids = list(range(VOCAB)) if rows is None else list(range(0, rows * 3, 3))
        asked = {"shape": shape, "options": {**options, "eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, "ids": ids}
        folder.with_suffix(".json").write_text(json.dumps(asked))
        made[folder] = ids, inputs(folder)
    ask("make", *made)
    for (folder, (ids, given)), (options, _) in zip(made.items(), CASES, strict=True):
        conversion = Conversion(target())
        form, theirs = read(folder, conversion)
        assert form == "speculators" and theirs.config.taps == (2, 4, 5) and columns(theirs).tolist() == ids
        assert any("the same as the target's" in line for line in conversion.notes)
        compare("theirs, run by us", folder, theirs, given, options)


def compare(what: str, folder: Path, made: Head, given: Input, options: dict[str, Any]) -> None:
    theirs = torch.load(folder.with_suffix(".logits.pt"), weights_only=True)
    assert theirs.shape == (STEPS, len(columns(made))) and theirs.std() > 0.1
    apart = float((theirs - logits(made, columns(made), given)).abs().max())
    print(f"\n{what}: {'+'.join(options) or 'plain'}, {len(columns(made))} columns: largest difference {apart:.2e}")
    assert apart < LIMIT


def test_values_that_the_package_leaves_out_are_its_defaults(tmp_path: Path):
    folder = folder_of("speculators", tmp_path / "h")
    edit(folder, lambda c, _: c["transformer_layer_config"].pop("rms_norm_eps"))
    assert read(folder, Conversion())[1].config.layer.rms_eps == 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c, _: c.update(speculators_model_type="dflash"), "of type 'dflash'; only 'eagle3'"),
        (lambda c, _: c["transformer_layer_config"].update(model_type="qwen3"), "of type 'qwen3'"),
        (lambda c, _: c.pop("transformer_layer_config"), "should be an object"),
        (lambda _, t: t.pop("layers.0.hidden_norm.weight"), "missing layers.0.hidden_norm.weight"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, change: Any, why: str):
    with pytest.raises(WeightsError, match=why):
        read(edit(folder_of("speculators", tmp_path / "h"), change), Conversion())
