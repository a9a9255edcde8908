"""DRAFTWOOD_CPU chooses a level; left alone, only what the CPU has is tried, best first."""

import pytest

from draftwood.errors import OptionError
from draftwood.kernels.cpu import levels
from draftwood.kernels.cpu.levels import LEVELS, SWITCH, chosen, wanted

NAMES = [level.name for level in LEVELS]
EVERYTHING = frozenset().union(*(level.needs for level in LEVELS))


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch):
    """Pretends to be a CPU with these flags."""
    monkeypatch.delenv(SWITCH, raising=False)

    def pretend(flags: frozenset[str]) -> None:
        monkeypatch.setattr(levels, "cpu_flags", lambda: flags)

    pretend(EVERYTHING)
    return pretend


@pytest.mark.parametrize("name", NAMES)
def test_switch_holds_at_one_level(cpu, monkeypatch, name):
    monkeypatch.setenv(SWITCH, f" {name.upper()} ")
    assert [level.name for level in wanted()] == [name]


def test_stock_wants_no_native_code(cpu, monkeypatch):
    monkeypatch.setenv(SWITCH, "stock")
    assert wanted() == []


def test_unknown_level_is_refused_with_the_names(cpu, monkeypatch):
    monkeypatch.setenv(SWITCH, "sse9")
    with pytest.raises(OptionError, match=f"'sse9'\nhint: one of {', '.join(NAMES)}, stock"):
        wanted()


@pytest.mark.parametrize("level", [level for level in LEVELS if level.needs], ids=lambda level: level.name)
def test_level_that_the_cpu_lacks_is_refused(cpu, monkeypatch, level):
    lost = sorted(level.needs)[0]
    cpu(EVERYTHING - {lost})
    monkeypatch.setenv(SWITCH, level.name)
    with pytest.raises(OptionError, match=f"this CPU has no {lost}"):
        wanted()


@pytest.mark.parametrize("switch", [None, "", "auto"])
def test_everything_is_tried_best_first(cpu, monkeypatch, switch):
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    assert chosen() == "auto" and [level.name for level in wanted()] == NAMES


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("amx_tile", NAMES[1:]),
        ("avx512_vnni", ["avx-vnni", "avx2", "portable"]),
        ("avx_vnni", ["amx", "avx512-vnni", "avx2", "portable"]),
        ("f16c", ["portable"]),
    ],
)
def test_only_what_the_flags_allow_is_tried(cpu, lost, left):
    cpu(EVERYTHING - {lost})
    assert [level.name for level in wanted()] == left


def test_strange_machine_has_the_portable_level(cpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(levels.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(levels, "cpu_flags", levels.cpu_flags.__wrapped__)
    assert [level.name for level in wanted()] == ["portable"]
