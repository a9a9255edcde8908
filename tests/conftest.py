"""What holds for the whole suite.

Shapes named on signatures are checked at run time. One thread: the models are tiny, and two threads beside a busy
neighbour are far slower than one.
"""

import torch
from jaxtyping import install_import_hook

import draftwood.testing.shapes  # noqa: F401  before the hook, which looks it up by name

torch.set_num_threads(1)
install_import_hook(
    [
        f"draftwood.{room}"
        for room in ("core", "cache", "models", "trees", "verifiers", "controllers", "drafters", "engine")
    ],
    "draftwood.testing.shapes.shapes_only",
)
