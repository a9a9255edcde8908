"""The kept tokens are the frequent ones, and a count file is believed only if it fits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from draftwood.core.protocols import Runner
from draftwood.drafters import frequent
from draftwood.drafters.frequent import (
    count_texts,
    count_written,
    counts_bytes,
    counts_name,
    coverage,
    most_frequent,
    read_counts,
)
from draftwood.errors import OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import BEGIN, write_folder
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.train.data.dialogues import Dialogue


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner_of(load(str(write_folder(tmp_path_factory.mktemp("model"))), dtype="float32"))


def test_the_most_frequent_and_the_control_tokens_are_kept_in_rising_order(target: Runner) -> None:
    counts = torch.zeros(258, dtype=torch.int64)
    counts[[200, 7, 9]] = torch.tensor([5, 2, 2])
    assert most_frequent(counts, 2, target).tolist() == [7, 200, 256, 257], "equal counts: the smaller id"
    assert most_frequent(counts, 4, target).tolist() == [0, 7, 9, 200, 256, 257]
    assert most_frequent(counts, 10_000, target).tolist() == list(range(258))
    assert most_frequent(torch.arange(61), 3, tiny_runner()).tolist() == [58, 59, 60], "no tokenizer, no control tokens"
    with pytest.raises(OptionError, match="vocab_size"):
        most_frequent(counts, 0, target)


def test_coverage_is_the_share_of_what_was_counted() -> None:
    counts = torch.tensor([0, 1, 2, 0])
    assert coverage(counts, torch.tensor([2])) == pytest.approx(2 / 3)
    assert coverage(counts, torch.arange(4)) == 1 and coverage(counts, torch.tensor([0, 3])) == 0
    assert coverage(torch.zeros(4, dtype=torch.int64), torch.tensor([0])) == 0, "nothing was counted"


def test_texts_are_counted_by_the_targets_own_tokenizer(
    target: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("a.txt", "abca"), ("b.txt", f"a{BEGIN}é")):
        (tmp_path / name).write_text(text)
    want = torch.bincount(torch.tensor(target.info.tokenizer.encode(f"abcaa{BEGIN}é")), minlength=258)
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    assert torch.equal(count_texts(files, target), want) and int(want.sum()) == 8
    monkeypatch.setattr(frequent, "_BLOCK", 3)
    assert int(count_texts(files[:1], target).sum()) == 4


def test_what_the_target_wrote_is_counted_and_nothing_else(target: Runner, tmp_path: Path) -> None:
    one = Dialogue(np.array([7, 7, 9, 9, 9, 4], dtype=np.int32), ((2, 4), (5, 6)))
    total = count_written([one, one], 258)
    assert {i: int(n) for i, n in enumerate(total) if n} == {9: 4, 4: 2}
    file = tmp_path / counts_name(target)
    file.write_bytes(counts_bytes(total))
    assert np.load(file).dtype == np.int32 and torch.equal(read_counts(str(file), target), torch.from_numpy(total))


def test_both_kinds_of_count_files_are_read(target: Runner, tmp_path: Path) -> None:
    np.save(tmp_path / "counts.npy", np.arange(258, dtype=np.uint32))
    save_file({"counts": torch.arange(258, dtype=torch.int32)}, tmp_path / "counts.safetensors")
    for name in ("counts.npy", "counts.safetensors"):
        assert torch.equal(read_counts(str(tmp_path / name), target), torch.arange(258))


def test_counts_that_ship_are_found_by_the_targets_fingerprint(
    target: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequent, "WEIGHTS", tmp_path)
    with pytest.raises(OptionError, match="no token counts ship") as refused:
        read_counts("auto", target)
    assert f"draftwood train vocab_trim --target {target.info.name} --out FOLDER" in str(refused.value)
    np.save(tmp_path / f"counts-{target.info.fingerprint}.npy", np.arange(258))
    assert torch.equal(read_counts("auto", target), torch.arange(258))
    with pytest.raises(OptionError, match="--target TARGET --out FOLDER"):
        read_counts("auto", tiny_runner())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.arange(257), "257.*258 tokens"),
        (np.zeros(258), "all zero"),
        (np.arange(258) - 3, "negative"),
        (None, "cannot be read"),
        (np.array([{}]), "cannot be read"),
    ],
)
def test_counts_that_do_not_fit_are_refused(target: Runner, tmp_path: Path, values: Any, reason: str) -> None:
    if values is not None:
        np.save(tmp_path / "counts.npy", values, allow_pickle=True)
    with pytest.raises(OptionError, match=reason):
        read_counts(str(tmp_path / "counts.npy"), target)


def test_texts_that_cannot_be_counted_are_refused(target: Runner, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    for files, reason in (
        ([], r"texts are needed .* none are given\nhint: (.*)texts=FILE"),
        ([str(tmp_path / "empty.txt")], "there is none in"),
        ([str(tmp_path / "missing.txt")], "cannot be read"),
    ):
        with pytest.raises(OptionError, match=reason):
            count_texts(files, target)
    with pytest.raises(OptionError, match="no tokenizer"):
        count_texts([str(tmp_path / "empty.txt")], tiny_runner())
