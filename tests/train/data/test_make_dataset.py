"""DatasetSettings that would never end, or could never begin, are refused."""

import pytest
import torch

from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded
from draftwood.train.data.make_dataset import DatasetSettings, make_dataset, parse_mix


@pytest.mark.parametrize(
    "wrong", [{"tokens": 0}, {"batch": 0}, {"max_tokens": 1}, {"minutes": -1.0}, {"tokens": None}, {"own": 1.5}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(OptionError):
        DatasetSettings(**wrong)


def test_mix_is_scaled_to_one():
    assert parse_mix("chat=3, math=1") == {"chat": 0.75, "math": 0.25}


def test_answers_longer_than_the_context_are_refused(tiny: Loaded, tmp_path):
    with pytest.raises(OptionError, match="no space for prompts"):
        make_dataset(tiny, tmp_path / "out", DatasetSettings(max_tokens=250))
    assert not (tmp_path / "out").exists()


def test_a_gpu_writes_more_dialogues_at_once_unless_a_number_is_given():
    cpu, gpu = torch.device("cpu"), torch.device("cuda:1")
    assert DatasetSettings().dialogues_at_once(cpu) < DatasetSettings().dialogues_at_once(gpu)
    assert DatasetSettings(batch=3).dialogues_at_once(gpu) == 3


def test_loaded_target_writes_where_it_is(tiny: Loaded, tmp_path):
    settings = DatasetSettings(tokens=1, batch=2, max_tokens=8, mix={"math": 1.0})
    with pytest.raises(OptionError, match="is loaded on cpu, not on meta"):
        make_dataset(tiny, tmp_path / "out", settings, device="meta")
    assert not (tmp_path / "out").exists()
