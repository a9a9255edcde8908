"""Shapes by name and by number, and what does not fit into them."""

from dataclasses import replace

import pytest

from draftwood.core.config import ModelConfig
from draftwood.errors import OptionError
from draftwood.testing.expand.shape import SHAPES, Shape, constant, epsilon, expanded, num_parameters, parse
from draftwood.testing.parts.tiny import CONFIG

SMOL = ModelConfig(
    family="llama", vocab_size=49152, hidden_size=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64,
    intermediate_size=1536, rope_theta=100_000.0, tie_embeddings=True,
)  # fmt: skip


def test_a_name_or_seven_numbers() -> None:
    assert parse("llama-3-8b") == Shape(32, 4096, 32, 8, 128, 14336, 128256)
    assert parse("30,1280,20,5,64,8192,128256") == SHAPES["llama-1b"] == parse(str(SHAPES["llama-1b"]))
    for text in ("llama", "1,2,3", "1,2,3,4,5,6,x", "1,2,3,4,5,6,0", ""):
        with pytest.raises(OptionError, match=r"shape cannot be .*\nhint: llama-3-8b, llama-1b, or layers,hidden"):
            parse(text)


def test_the_named_shapes_hold_a_model_of_135_million() -> None:
    sizes = {name: num_parameters(expanded(SMOL, shape)) / 1e9 for name, shape in SHAPES.items()}
    assert sizes["llama-3-8b"] == pytest.approx(8.03, abs=0.01)
    assert sizes["llama-1b"] == pytest.approx(1.40, abs=0.01)
    found = expanded(SMOL, SHAPES["llama-3-8b"])
    assert (
        not found.tie_embeddings and found.rope_theta == SMOL.rope_theta and found.max_positions == SMOL.max_positions
    )
    assert found.rms_eps == epsilon(SMOL.rms_eps, SMOL, found, constant(SMOL, found)) > 0
    assert constant(SMOL, found) == 2.0**-10


def test_a_constant_is_needed_for_masked_rows_only_and_fits_into_epsilon() -> None:
    same = expanded(CONFIG, Shape(4, 64, 4, 2, 8, 48, 61))
    assert constant(CONFIG, same) == 0 and same.tie_embeddings and same.rms_eps == CONFIG.rms_eps / 2
    exact = replace(CONFIG, rms_eps=1e-9)
    more = expanded(exact, Shape(4, 64, 4, 2, 8, 48, 62))
    assert 0 < constant(exact, more) < 2.0**-10 and 0 < more.rms_eps < 1e-9


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(3, 32, 4, 2, 8, 48, 61), "layers: 3, the model has 4"),
        (Shape(4, 31, 4, 2, 8, 48, 61), "hidden: 31, the model has 32"),
        (Shape(4, 32, 4, 2, 8, 47, 61), "MLP: 47, the model has 48"),
        (Shape(4, 32, 4, 2, 8, 48, 60), "vocabulary: 60, the model has 61"),
        (Shape(4, 32, 4, 2, 12, 48, 61), "head size: 12 is no multiple of 8"),
        (Shape(4, 32, 5, 2, 8, 48, 61), "5 heads cannot share 2 key/value heads"),
        (Shape(4, 32, 4, 1, 8, 48, 61), "key/value heads: 1, the model needs 2, as 4 heads share one and 2 did"),
        (Shape(4, 32, 3, 3, 8, 48, 61), "key/value heads: 3, the model needs 4, as 1 heads share one and 2 did"),
        (Shape(4, 32, 4, 2, 8, 48, 62), "a larger vocabulary needs one hidden dimension more than 32"),
    ],
)
def test_what_does_not_fit_is_named(shape: Shape, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        expanded(CONFIG, shape)
    assert f"does not fit into the shape {shape}" in str(caught.value) and said in str(caught.value)


def test_everything_that_does_not_fit_is_named_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        expanded(replace(CONFIG, qk_norm=True), Shape(1, 1, 1, 1, 1, 1, 1))
    assert all(word in str(caught.value) for word in ("layers", "hidden", "MLP", "vocabulary", "head size", "Qwen3"))
