"""Which backend a model runs on: what was asked for, and what the machine has."""

from dataclasses import replace

import pytest
import torch

from draftwood.errors import OptionError
from draftwood.kernels.cpu import build, levels
from draftwood.kernels.cpu.levels import LEVELS, SWITCH
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends import choose, int8_weights
from draftwood.models.backends.choose import AUTO, INT8, int8_decoder, like, open_library, precision, supported
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_weights

EVERYTHING = frozenset().union(*(level.needs for level in LEVELS))
NAMES = [level.name for level in LEVELS]


@pytest.mark.parametrize(
    ("dtype", "device", "chosen"),
    [
        ("auto", "cpu", INT8),
        ("auto", "cuda:1", torch.bfloat16),
        ("int8", torch.device("cpu"), INT8),
        ("float32", "cpu", torch.float32),
        ("float64", "cpu", torch.float64),
        ("float16", "cuda", torch.float16),
        (torch.bfloat16, "cpu", torch.bfloat16),
    ],
)
def test_dtype_names_a_precision(dtype, device, chosen):
    assert precision(dtype, device) == chosen


def test_int8_runs_on_a_cpu_only():
    with pytest.raises(OptionError, match="the int8 backend runs on a CPU, not on cuda\nhint"):
        precision("int8", "cuda")


def test_unknown_dtype_is_refused_with_the_names():
    with pytest.raises(OptionError, match="'int4'\nhint: auto, int8, q4, float32, float64, bfloat16, float16"):
        precision("int4")


def test_draft_is_as_precise_as_its_target():
    info = tiny_decoder(dtype=torch.float64).info
    assert like(info) == torch.float64
    assert like(replace(info, dtype=torch.bfloat16)) == torch.bfloat16
    assert like(replace(info, batch_invariant=True, dtype=torch.float32)) == AUTO


@pytest.mark.parametrize(("width", "held"), [(8, True), (256, True), (258, False)])
def test_heads_may_be_so_wide(width, held):
    assert supported(replace(CONFIG, head_dim=width)) == held


# --- libraries


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A CPU that has everything, whose compiler makes the levels in `made` and whose system lends those in `lent`."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(levels, "cpu_flags", lambda: EVERYTHING)
    choose._open.cache_clear()

    def pretend(made: list[str], lent: list[str] | None = None) -> list[str]:
        asked: list[str] = []

        def library(level, folder):
            asked.append(level.name)
            return folder / level.name if level.name in made else None

        def opened(name, path):
            if lent is not None and name not in lent:
                raise OSError("the system does not lend it")
            return Library(name, None)  # type: ignore[arg-type]

        monkeypatch.setattr(build, "library", library)
        monkeypatch.setattr(Library, "open", opened)
        return asked

    yield pretend
    choose._open.cache_clear()


def level() -> str | None:
    library = open_library()
    return library and library.level


def test_best_level_is_opened_once(machine):
    asked = machine(NAMES)
    assert (level(), level()) == ("amx", "amx") and asked == ["amx"]


def test_next_level_is_tried_where_one_fails(machine, caplog):
    machine(NAMES[1:], lent=NAMES[2:])
    assert level() == "avx-vnni"
    assert "the avx512-vnni kernels cannot be used: the system does not lend it" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_switch_names_the_level(machine, monkeypatch, name):
    asked = machine(NAMES)
    monkeypatch.setenv(SWITCH, name)
    assert level() == name and asked == [name]


def test_switch_may_change_between_two_models(machine, monkeypatch):
    machine(NAMES)
    for name in ("avx2", "stock", "portable", "avx2"):
        monkeypatch.setenv(SWITCH, name)
        assert level() == (None if name == "stock" else name)


def test_without_a_library_the_backend_is_stock_and_says_so(machine, caplog, monkeypatch):
    machine([])
    weights = int8_weights.from_tensors(CONFIG, tiny_weights())
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    assert "stock" in int8_decoder(CONFIG, weights).info.backend
    assert "no native kernels" in caplog.text and "no C++ compiler was found" in caplog.text


def test_stock_by_choice_is_no_reason_to_warn(machine, caplog, monkeypatch):
    asked = machine(NAMES)
    monkeypatch.setenv(SWITCH, "stock")
    info = int8_decoder(CONFIG, int8_weights.from_tensors(CONFIG, tiny_weights())).info
    assert "stock" in info.backend and info.batch_invariant and like(info) == AUTO
    assert asked == [] and caplog.text == ""


def test_library_makes_the_backend_native(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    library = open_library()
    if library is None:
        pytest.skip("no compiler")
    info = int8_decoder(CONFIG, int8_weights.from_tensors(CONFIG, tiny_weights())).info
    assert info.backend == f"int8 {library.level}" and info.batch_invariant and like(info) == AUTO
