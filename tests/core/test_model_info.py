"""A model says of itself what others need to know; one that was loaded also where it came from."""

import gc
import weakref
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.core.model_info import ModelInfo
from draftwood.models.loading.load import load
from draftwood.testing.folder import CONFIG, write_folder
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import tiny_decoder

INFO = ModelInfo(vocab_size=9, num_layers=2, hidden_size=4, max_positions=16)


def speaking(*control: int) -> Any:
    return SimpleNamespace(control_tokens=control)


def test_control_tokens_are_those_of_the_tokenizer_and_the_ends_each_once_in_order() -> None:
    assert INFO.control_tokens == ()
    assert replace(INFO, eos_token_ids=(7, 2)).control_tokens == (2, 7)
    assert replace(INFO, tokenizer=speaking(8, 1)).control_tokens == (1, 8)
    assert replace(INFO, eos_token_ids=(7, 1), tokenizer=speaking(8, 1)).control_tokens == (1, 7, 8)


@pytest.mark.parametrize(
    ("dtype", "batch_invariant", "ties"),
    [
        (torch.float32, False, True),
        (torch.bfloat16, False, True),
        (torch.float64, False, False),
        (torch.float32, True, False),
    ],
)
def test_rounding_changes_a_text_only_where_it_depends_on_the_batch(
    dtype: torch.dtype, batch_invariant: bool, ties: bool
) -> None:
    assert replace(INFO, dtype=dtype, batch_invariant=batch_invariant).near_ties == ties


@pytest.mark.parametrize(("dtype", "backend"), [("float32", "float32"), ("float64", "float64"), ("int8", "int8")])
def test_a_loaded_model_has_a_name_a_tokenizer_and_a_fingerprint(tmp_path: Path, dtype: str, backend: str) -> None:
    loaded = load(str(write_folder(tmp_path)), dtype=dtype)
    info = loaded.info
    assert info.name == loaded.name == str(tmp_path) and info.tokenizer is loaded.tokenizer
    assert info.fingerprint == loaded.fingerprint and len(info.fingerprint) == 16
    assert info.eos_token_ids == (257,) and info.control_tokens == (256, 257)
    assert info.config == loaded.config and info.backend.startswith(backend)
    for name in ("vocab_size", "num_layers", "hidden_size", "max_positions"):
        assert getattr(info, name) == getattr(CONFIG, name)


def test_a_model_built_in_memory_has_none() -> None:
    for model in (tiny_decoder(), TableModel(3, random_probs(3, 1))):
        info = model.info
        assert (info.name, info.fingerprint, info.tokenizer, info.eos_token_ids) == ("", "", None, ())


def test_other_weights_have_another_fingerprint(tmp_path: Path) -> None:
    first, same, other = (load(str(write_folder(tmp_path / str(i), seed=i // 2))).info for i in range(3))
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_what_is_known_is_no_value_but_a_model() -> None:
    """Two models of one shape are two, and what is remembered of one goes with it."""
    again = replace(INFO)
    assert again != INFO and len({again, INFO}) == 2
    with pytest.raises(FrozenInstanceError):
        again.vocab_size = 3  # type: ignore[misc]
    held = weakref.ref(again)
    del again
    gc.collect()
    assert held() is None


def test_a_report_names_the_block_types_of_the_weights_and_what_multiplies_them() -> None:
    info = ModelInfo(vocab_size=2, num_layers=1, hidden_size=4, max_positions=8, backend="int8 avx2")
    assert info.arithmetic == "int8 avx2"
    assert replace(info, weights="Q4_K + Q6_K blocks").arithmetic == "Q4_K + Q6_K blocks, int8 avx2 activations"
