"""The page shows what was measured, each part with its command, and keeps the parts of earlier runs."""

from pathlib import Path
from typing import Any

import pytest

from draftwood.bench.gpu.page import DRAWN, keep, page
from draftwood.cli.bench.gpu import PARTS, RUN
from draftwood.errors import OptionError

SOURCE = {"command": "draftwood bench gpu pass", "device": "GPU", "torch": "2.11", "commit": "abc", "time": "now"}
RATIO = {"value": 2.5, "low": 2.4, "high": 2.6, "pairs": 5}
PASSES: dict[str, Any] = {
    "rows": [
        {"case": {"batch": 1, "context": 512, "nodes": 16}, "ms": {"kernels": 4.2, "stock": 6.1}, "floor": 3.5},
        {"case": {"batch": 8, "context": 512, "nodes": 1}, "ms": {"kernels": None, "stock": 7.0}, "floor": 3.5},
    ],
    "bytes_per_second": 4.3e12,
    "provenance": SOURCE,
}
SPEEDS: dict[str, Any] = {
    "rows": [
        {
            "recipe": "autoregressive",
            "batch": 1,
            "tokens_per_second": 240.4,
            "tokens_per_pass": 1.0,
            "over_plain": None,
        },
        {"recipe": "eagle3", "batch": 1, "tokens_per_second": 601.0, "tokens_per_pass": 3.21, "over_plain": RATIO},
    ],
    "provenance": SOURCE,
}
OUTSIDE: dict[str, Any] = {
    "rows": [
        {
            "recipe": "eagle3",
            "batch": 8,
            "ms": 1.25,
            "outside": {**RATIO, "value": 0.1, "low": 0.09, "high": 0.11},
            "outside_kernels": 0.125,
        }
    ],
    "provenance": SOURCE,
}


def test_every_part_has_a_table_and_a_run() -> None:
    assert set(DRAWN) == set(PARTS) == set(RUN)


def test_a_page_shows_figures_beside_their_command() -> None:
    text = page({"texts": SPEEDS, "pass": PASSES, "outside": OUTSIDE})
    assert "| 1 | 512 | 16 | 3.50 | 4.20 | 6.10 | 1.20 |" in text
    assert "| 8 | 512 | 1 | 3.50 | - | 7.00 | 2.00 |" in text
    assert "| autoregressive | 1 | 240 | 1.00 | - |" in text
    assert "| eagle3 | 1 | 601 | 3.21 | 2.50 2.40-2.60 |" in text
    assert "| eagle3 | 8 | 1.25 | 10.0 9.0-11.0 | 12.5 |" in text
    assert (
        "`draftwood bench gpu pass` (GPU, torch 2.11, abc, now; a copy within the device's memory: 4.30 TB/s)" in text
    )
    assert text.index("A pass of an 8B shape") < text.index("Answers of the embedded model")
    assert "Fixed depths" not in text, "that was not measured"


def test_parts_of_several_runs_share_a_page(tmp_path: Path) -> None:
    keep(tmp_path / "new", "pass", PASSES)
    keep(tmp_path / "new", "texts", {**SPEEDS, "rows": []})
    written = keep(tmp_path / "new", "texts", SPEEDS)
    assert written.read_text() == page({"pass": PASSES, "texts": SPEEDS})
    (tmp_path / "new" / "gpu.json").write_text("{")
    with pytest.raises(OptionError, match="holds no results"):
        keep(tmp_path / "new", "pass", PASSES)
