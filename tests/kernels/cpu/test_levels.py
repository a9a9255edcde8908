"""DRAFTWOOD_CPU chooses a level; left alone, only what the CPU has is tried, best first."""

import pytest

from draftwood.errors import OptionError
from draftwood.kernels.cpu import levels
from draftwood.kernels.cpu.levels import LEVELS, SWITCH, chosen, wanted

NAMES = [level.name for level in LEVELS]
ARM = ["neon-i8mm", "neon-dotprod"]
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
        ("avx512_vnni", ["avx-vnni", "avx2", *ARM, "portable"]),
        ("avx_vnni", ["amx", "avx512-vnni", "avx2", *ARM, "portable"]),
        ("f16c", [*ARM, "portable"]),
        ("i8mm", [name for name in NAMES if name != "neon-i8mm"]),
        ("asimddp", [name for name in NAMES if name not in ARM]),
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


X86 = "processor\t: 0\nmodel name\t: Some\nflags\t\t: fpu avx2 fma f16c\nbugs\t\t: none\n"
ON_ARM = "processor\t: {}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd {}\nCPU implementer\t: 0x41\n\n"
SYSCTL = "hw.optional.arm.FEAT_DotProd: {}\nhw.optional.arm.FEAT_I8MM: {}\nhw.optional.arm.FEAT_BF16: 1\n"


@pytest.mark.parametrize(
    ("cpuinfo", "names"),
    [
        (X86, ["avx2", "portable"]),
        (ON_ARM.format(0, "asimdrdm"), ["portable"]),
        (ON_ARM.format(0, "asimddp") * 4, ["neon-dotprod", "portable"]),
        (ON_ARM.format(0, "asimddp i8mm bf16"), ["neon-i8mm", "neon-dotprod", "portable"]),
        (ON_ARM.format(0, "asimddp i8mm") + ON_ARM.format(1, "asimddp"), ["neon-dotprod", "portable"]),
        ("", ["portable"]),
    ],
)
def test_linux_says_what_every_processor_has(cpu, cpuinfo: str, names: list[str]):
    cpu(levels.flags_of_linux(cpuinfo))
    assert [level.name for level in wanted()] == names


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (SYSCTL.format(1, 1), ["neon-i8mm", "neon-dotprod", "portable"]),
        (SYSCTL.format(1, 0), ["neon-dotprod", "portable"]),
        (SYSCTL.format(0, 0), ["portable"]),
        ("", ["portable"]),
    ],
)
def test_a_mac_says_what_its_processor_has(cpu, said: str, names: list[str]):
    cpu(levels.flags_of_mac_on_arm(said))
    assert [level.name for level in wanted()] == names


@pytest.mark.parametrize(("system", "machine"), [("linux", "aarch64"), ("darwin", "arm64")])
def test_arm_machine_is_asked_in_its_own_way(cpu, monkeypatch, tmp_path, system: str, machine: str):
    monkeypatch.undo()
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(levels.platform, "machine", lambda: machine)
    monkeypatch.setattr(levels.sys, "platform", system)
    monkeypatch.setattr(levels, "cpu_flags", levels.cpu_flags.__wrapped__)
    (tmp_path / "cpuinfo").write_text(ON_ARM.format(0, "asimddp i8mm"))
    monkeypatch.setattr(levels, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(levels, "_sysctl", lambda *keys: SYSCTL.format(1, 1) if keys == ("hw.optional.arm",) else "")
    assert [level.name for level in wanted()] == ["neon-i8mm", "neon-dotprod", "portable"]
