"""One picture of the whole run, torn lines or not; none where there is nothing to draw."""

from pathlib import Path

import pytest

from draftwood.train.loop.curves import draw
from draftwood.train.loop.log import FILE, Log


def test_picture_covers_the_log(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = Log(tmp_path)
    log.add({"step": 0, "tokens": 100, "losses": {"eagle2": 3.0, "medusa": 4.0}})
    log.add({"step": 10, "tokens": 900, "losses": {"eagle2": 2.0, "medusa": 3.0}})
    log.add({"step": 11, "recipe": "eagle2", "tokens_per_pass": 1.5})
    log.add({"recipe": "vocab_trim", "stage": "count", "made": {"tokens": 5}})
    with (tmp_path / FILE).open("a") as file:
        file.write("{torn")
    assert draw(tmp_path) == tmp_path / "curves.svg"
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert draw(tmp_path) is None
    Log(tmp_path).add({"step": 11, "recipe": "eagle2", "tokens_per_pass": 1.5})
    assert draw(tmp_path) is None
