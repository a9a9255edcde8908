"""The tiny target."""

from typing import Any

import pytest

from draftwood.testing.parts.tiny import tiny_runner


@pytest.fixture
def target() -> Any:
    return tiny_runner()
