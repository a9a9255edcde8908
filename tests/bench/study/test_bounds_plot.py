"""The picture of `draftwood bounds`."""

import sys
from pathlib import Path

import pytest
import torch

from draftwood.bench.study.bounds import Pairs, compare
from draftwood.bench.study.bounds_plot import draw

FOUND = compare(Pairs(torch.tensor([[0.4, 0.6]]), torch.tensor([[0.7, 0.3]]), (0,)), [1, 2], 0.5)


def test_every_line_and_temperature_is_in_the_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = draw([FOUND, FOUND], tmp_path / "b.svg")
    assert path is not None and path.read_text().count("temperature 0.5") >= 2


def test_without_matplotlib_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw([FOUND], tmp_path / "b.svg") is None and not list(tmp_path.iterdir())
