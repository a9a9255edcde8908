"""Keys are unit vectors along the directions in which hidden states differ most, the same whenever they are made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.retrieval.stores.dense.projection import Projection


def states(count: int = 500, size: int = 6, seed: int = 0) -> np.ndarray:
    """Large and small dimensions around some mean, two of them nearly one."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, size)) * 10.0 ** np.arange(size) + 7
    x[:, 1] = x[:, 0] + 0.01 * rng.standard_normal(count)
    return x.astype(np.float32)


def test_keys_are_what_the_definition_says() -> None:
    x = states()
    found = Projection.fit(x, 2)
    z = (x - x.mean(0)) / x.std(0)
    _, _, directions = np.linalg.svd(z, full_matrices=False)
    expected = z @ directions[:2].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    sign = np.sign((expected * found.keys(x)).sum(0))  # a direction may point either way
    assert found.keys(x).dtype == np.float16
    np.testing.assert_allclose(found.keys(x) * sign, expected, atol=2e-3)


@given(st.integers(0, 499))
def test_a_state_has_the_key_alone_that_it_has_among_others(row: int) -> None:
    """Building reads many at once, a draft asks for one."""
    x = states()
    found = Projection.fit(x, 3)
    np.testing.assert_allclose(found.keys(x[row : row + 1])[0], found.keys(x)[row], atol=1e-3)
    assert np.linalg.norm(found.keys(x[row : row + 1]).astype(np.float32)) == pytest.approx(1, abs=2e-3)


def test_dimensions_that_never_change_and_a_state_that_is_the_mean_do_no_harm() -> None:
    x = states()
    x[:, 2] = 3.0
    found = Projection.fit(x, 4)
    assert np.isfinite(found.keys(x)).all()
    assert not found.keys(found.mean[None]).any()
    assert not Projection.fit(np.ones((1, 4), np.float32), 4).keys(np.ones((1, 4))).any()
