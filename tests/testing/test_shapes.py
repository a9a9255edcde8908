"""Signatures name shapes, and the shapes are what signatures say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, jaxtyped
from torch import Tensor

from draftwood.testing.shapes import shapes_only

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_rooms_keep_the_shapes_on_their_signatures() -> None:
    rooms = ["tests/core", "tests/trees", "tests/drafters", "tests/cache", "tests/verifiers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(r for r in rooms if (ROOT / r).exists())],
        cwd=ROOT,
        env={**os.environ, "DRAFTWOOD_SHAPES": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_wrong_shape_is_noticed() -> None:
    def ratio(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        return p / q

    checked = jaxtyped(ratio, typechecker=shapes_only)
    checked(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(Exception, match=r"q|p"):
        checked(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(Exception, match=r"q|p"):
        checked(torch.ones(2, 3).long(), torch.ones(2, 3))
