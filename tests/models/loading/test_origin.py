"""A model loaded by name knows where it came from, for as long as it lives."""

import gc
from pathlib import Path

from draftwood.models.loading import origin
from draftwood.models.loading.load import load
from draftwood.models.loading.origin import origin_of
from draftwood.testing.folder import write_folder
from draftwood.testing.tiny import tiny_decoder


def test_a_loaded_model_is_known_by_name_and_forgotten_with_its_end(tmp_path: Path) -> None:
    loaded = load(str(write_folder(tmp_path)), dtype="float32")
    found = origin_of(loaded.model)
    assert found is not None and found.tokenizer is loaded.tokenizer
    assert found.name == str(tmp_path) and found.control_tokens == (256, 257)
    assert any(each is found for each in origin._ORIGINS.values())
    del loaded
    gc.collect()
    assert not any(each is found for each in origin._ORIGINS.values())


def test_a_model_made_in_memory_has_no_origin() -> None:
    assert origin_of(tiny_decoder()) is None
