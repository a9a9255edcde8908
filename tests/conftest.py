"""What holds for the whole suite.

One thread: the models are tiny, and two threads beside a busy neighbour are far slower than one. With DRAFTWOOD_SHAPES=FILE
the shapes named on signatures are checked at run time, and the file names the functions that were never called; that is
slow, so tests/testing/test_shape_checker.py does it for some rooms.
"""

import gc
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported: it decides as each kernel is defined

# Rooms whose tests run whole recipes, commands and trainings: `make test-fast` leaves them out and checks the parts.
WHOLE_RUNS = ("bench", "cli", "recipes", "search", "sizing", "train")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are left out these rooms have none, so their files need not be imported."""
    if os.environ.get("DRAFTWOOD_SHAPES") or "not slow" not in config.option.markexpr:
        return None
    root = config.rootpath / "tests"
    return True if any(collection_path == root / room for room in WHOLE_RUNS) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DRAFTWOOD_SHAPES"):  # that run names its tests
        return
    root = config.rootpath / "tests"
    counts: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            name = item.nodeid.partition("[")[0]
            if counts[name] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            counts[name] += 1
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        if item.path.is_relative_to(root) and item.path.relative_to(root).parts[0] in WHOLE_RUNS:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """What is imported by now stays to the end, so the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell without job control lets what it starts in the background ignore interrupts; tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if report := os.environ.get("DRAFTWOOD_SHAPES"):
    from jaxtyping import install_import_hook

    from draftwood.testing import shape_checker  # before the hook, which looks it up by name

    rooms = ("core", "cache", "models", "runners", "trees", "verifiers", "controllers", "drafters", "engine")
    install_import_hook([f"draftwood.{room}" for room in rooms], "draftwood.testing.shape_checker.shapes_only")

    unheard = Path(report)

    def pytest_sessionfinish() -> None:
        unheard.write_text("\n".join(shape_checker.uncalled(f"draftwood.{room}" for room in rooms)))
