"""A loaded model gets the runner that fits it, and keeps what is known of it."""

from pathlib import Path

import pytest

from draftwood.core.forward import CacheSpec
from draftwood.errors import EngineError, ModelError, OptionError
from draftwood.models.loading.load import load
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.runners.open import runner_of, runner_on
from draftwood.runners.transformers import TransformersRunner
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.tiny import tiny_decoder


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_a_loaded_model_keeps_its_name_and_gets_no_cache(dtype: str, tmp_path: Path) -> None:
    loaded = load(str(write_folder(tmp_path)), dtype=dtype)
    runner = runner_of(loaded)
    assert type(runner) is CpuRunner and runner.model is loaded.model
    assert runner.info is loaded.info is runner_of(loaded).info, "what is remembered of it is found again"
    assert runner.info.name == str(tmp_path) and runner.info.fingerprint == loaded.fingerprint
    with pytest.raises(EngineError, match="has no cache"):
        runner.admit(0, [1])
    assert runner.first_layers(1).info.num_layers == 1


@pytest.mark.slow
def test_a_model_of_transformers_is_run_whole(tmp_path: Path) -> None:
    loaded = load(f"hf:{write_folder(tmp_path)}")
    runner = runner_of(loaded)
    assert type(runner) is TransformersRunner and runner.info is loaded.info
    assert runner.info.name == f"hf:{tmp_path}" and not runner.info.layer_ranges
    with pytest.raises(ModelError):
        runner.first_layers(1)


def test_a_decoder_built_in_memory_has_no_name() -> None:
    runner = runner_on(tiny_decoder())
    assert type(runner) is CpuRunner
    assert type(runner_on(tiny_decoder(), batch_invariant=False)) is CpuRunner
    assert (runner.info.name, runner.info.fingerprint, runner.info.tokenizer) == ("", "", None)


def test_what_cannot_be_batch_invariant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="batch_invariant: float64 on cpu cannot promise it"):
        runner_on(tiny_decoder(), batch_invariant=True)
    whole = load(str(write_folder(tmp_path)), dtype="int8")
    assert runner_of(whole, batch_invariant=True).info is whole.info, "int8 products are exact"


def test_an_accelerator_without_our_kernels_refuses_it_when_it_is_opened() -> None:
    runner = runner_on(tiny_decoder().to("meta"), batch_invariant=True)
    assert type(runner) is CudaRunner and runner.info.batch_invariant
    with pytest.raises(OptionError, match="our kernels do not run this model here: dtype float64"):
        runner.open(1, 16)
    with pytest.raises(OptionError, match="pools"):
        runner.open(1, 16, pools=[CacheSpec("own", 1, 1)])
