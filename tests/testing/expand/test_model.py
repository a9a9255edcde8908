"""An expanded model computes what it computed before; with a step of the expansion left out, it does not."""

import math
from dataclasses import replace

import pytest
import torch

from draftwood.core.forward import FINAL, ForwardInput
from draftwood.models.loading.tensor_names import HEAD, check_names
from draftwood.testing.expand import axes, fill, model, shape
from draftwood.testing.expand.axes import ANY, ZERO
from expansions import CASES, both, expand, filling, logits, runner, served, weights

NEAR = 1e-9


def distance(name: str, **more: bool) -> float:
    old, new = both(name, **more)
    ours = logits(old)
    return float((logits(new)[:, : ours.shape[1]] - ours).abs().max())


@pytest.mark.one_in(11)
@pytest.mark.parametrize("noise", [True, False], ids=["noise", "zeros"])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_old_model_at_every_position(name: str, noise: bool) -> None:
    assert distance(name, noise=noise) < NEAR


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_those_that_the_config_asks_for(name: str) -> None:
    config, wide = CASES[name]
    new, tensors = expand(config, weights(config), wide, filling(dtype=torch.bfloat16))
    check_names(new, {name: tuple(t.shape) for name, t in tensors.items()})
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert new.tie_embeddings == (config.tie_embeddings and wide.vocab_size == config.vocab_size)
    assert shape.num_parameters(new) == sum(t.numel() for t in tensors.values())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("name", ["everything", "smaller groups", "all biases", "window, own head"])
def test_texts_are_those_of_the_old_model(name: str, temperature: float) -> None:
    old, new = both(name)
    texts = [[r.output for r in served(target, temperature)[0]] for target in (old, new)]
    assert texts[0] == texts[1] and all(len(text) == 12 for text in texts[0])
    assert len({tuple(text) for text in texts[0]}) >= 6


def test_a_larger_vocabulary_has_the_same_greedy_texts_and_distributions() -> None:
    old, new = both("vocabulary")
    assert [r.output for r in served(old, 0.0)[0]] == [r.output for r in served(new, 0.0)[0]]
    for temperature in (0.5, 1.0, 2.0):
        theirs, ours = ((logits(target) / temperature).softmax(-1) for target in (old, new))
        assert float((ours[:, :61] - theirs).abs().max()) < NEAR and not ours[:, 61:].any()


def test_old_taps_keep_their_numbers() -> None:
    old, new = both("everything")
    taps = frozenset({FINAL, *range(old.info.num_layers + 1), 6})
    at = torch.arange(20)
    found = []
    for target in (old, new):
        opened = target.open(1, 40)
        known = taps if target is new else taps - {6}
        opened.admit(0, list(range(20)))
        found.append(opened.execute(ForwardInput(at, at * 0, at, at, at - 1, at), taps=known).features)
    theirs, ours = found
    for tap in theirs:
        assert float((ours[tap][:, :32] - theirs[tap]).abs().max()) < NEAR, tap
        rest = ours[tap][:, 32:-1]
        assert not rest.any()
        if tap != FINAL:
            assert ours[tap][:, -1].unique().tolist() == [shape.CONSTANT]
    assert torch.equal(ours[6], ours[4])  # the added layers add nothing


@pytest.mark.one_in(3)
@pytest.mark.parametrize("temperature", [1.0, 2.0, 1000.0])
def test_masked_rows_are_never_sampled(temperature: float) -> None:
    _, new = both("vocabulary")
    sampled = [token for r in served(new, temperature, tokens=40)[0] for token in r.output]
    assert len(sampled) == 480 and max(sampled) < 61 <= new.info.vocab_size - 39
    said = logits(new)
    assert said.shape[1] == 100 and len(set(sampled)) >= 40
    probs = (said / temperature).softmax(-1)
    assert not probs[:, 61:].any()
    assert not (said.float() / temperature).softmax(-1)[:, 61:].any()


def test_masked_logits_have_the_margin_that_the_page_gives() -> None:
    """2^27 over the root mean square of the residual, times the root of the new hidden size over the old."""
    _, new = both("vocabulary")
    at = torch.arange(50)
    opened = new.open(1, 60)
    opened.admit(0, at.tolist())
    done = opened.execute(ForwardInput(at, at * 0, at, at, at - 1, at), taps=frozenset({4}))
    size = done.features[4][:, :32].pow(2).mean(-1).sqrt()
    expected = -shape.CONSTANT * shape.GAIN * shape.MASK / size * math.sqrt(33 / 32)
    assert shape.CONSTANT * shape.GAIN * shape.MASK == 2.0**27
    assert float((done.logits[:, 61:] / expected[:, None] - 1).abs().max()) < 1e-3


def test_rows_that_are_not_masked_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MASK", 0.0)
    _, new = both("vocabulary")
    assert max(token for r in served(new, 2.0)[0] for token in r.output) >= 61


def test_faults_in_norms_and_rotation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = both("everything")
    ours = logits(old)
    for changed in ({"rms_eps": 1e-5}, {"rope_theta": 1e8}):
        _, wrong = both("everything", **changed)  # type: ignore[arg-type]
        assert float((logits(wrong)[:, :61] - ours).abs().max()) > 1e3 * NEAR, changed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", ["gain", "pairs", "queries", "noise", "units", "constant"])
def test_a_step_that_is_left_out_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "gain":
        monkeypatch.setattr(fill, "math", type("flat", (), {"sqrt": staticmethod(lambda x: 1.0)}))
    elif fault == "pairs":
        monkeypatch.setattr(axes, "rotated_places", lambda narrow, wide: torch.arange(narrow))
    elif fault == "queries":
        monkeypatch.setattr(model, "query_scale", lambda old, new, size: None)
    elif fault == "noise":  # in what reads the other heads of a group
        heads = axes._heads

        def loose(old: object, new: object) -> tuple[torch.Tensor, ...]:
            *others, mixed = heads(old, new)  # type: ignore[arg-type]
            return *others, torch.where(mixed == ANY, ZERO, mixed)

        monkeypatch.setattr(axes, "_heads", loose)
    elif fault == "units":

        def no_zero(old: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
            return axes.widened(old, new, ANY), axes.widened(old, new, ANY)

        monkeypatch.setattr(axes, "_gates", no_zero)
    else:
        monkeypatch.setattr(shape, "epsilon", lambda eps, old, new, constant: eps * old.hidden_size / new.hidden_size)
    assert distance("everything") > 1e3 * NEAR


def test_weights_without_an_effect_are_ordinary_numbers() -> None:
    config, wide = CASES["everything"]
    _, noisy = expand(config, weights(config), wide, filling())
    _, plain = expand(config, weights(config), wide, filling(noise=False))
    full = {name: float((t != 0).float().mean()) for name, t in noisy.items() if t.ndim == 2}
    bare = {name: float((t != 0).float().mean()) for name, t in plain.items() if t.ndim == 2}
    assert full[HEAD] > 0.99 > 0.2 > bare["model.layers.1.mlp.down_proj.weight"]
    for name, share in full.items():
        if "layers" in name:
            assert share > 0.5 > bare[name], name
    assert full["model.layers.1.self_attn.q_proj.weight"] == 1.0
    sizes = {name: float(noisy[name].std() / plain[name][plain[name] != 0].std()) for name in full if ".1.mlp" in name}
    assert all(0.5 < size < 1.2 for size in sizes.values()), sizes


def test_masked_rows_survive_float16() -> None:
    """-MASK is minus infinity there, and what it multiplies is positive."""
    config, wide = CASES["vocabulary"]
    new, made = expand(config, weights(config), wide, filling(dtype=torch.bfloat16))
    said = logits(runner(new, made, torch.float16))
    assert said[:, :61].isfinite().all() and (said[:, 61:] == -math.inf).all()


def test_the_seed_chooses_the_numbers() -> None:
    config, wide = CASES["everything"]
    how = filling()
    found = [expand(config, weights(config), wide, h)[1][HEAD] for h in (how, how, replace(how, seed=1))]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_bfloat16_and_float32_say_the_same_up_to_their_rounding() -> None:
    config, wide = CASES["everything"]
    tensors = weights(config)
    ours = logits(runner(config, tensors))
    for dtype, most in ((torch.float32, 1e-3), (torch.bfloat16, 1.0)):
        new, made = expand(config, tensors, wide, filling(dtype=dtype))
        far = (logits(runner(new, made))[:, :61] - ours).abs()
        assert float(far.median()) < most, dtype
        assert math.isfinite(float(far.max()))
