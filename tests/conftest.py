"""What holds for the whole suite.

One thread: the models are tiny, and two threads beside a busy neighbour are far slower than one. With DRAFTWOOD_SHAPES=FILE
the shapes named on signatures are checked at run time, and the file names the functions that were never called; that is
slow, so tests/testing/test_shape_checker.py does it for some rooms.
"""

import gc
import os
import signal
from pathlib import Path

import torch

torch.set_num_threads(1)


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
