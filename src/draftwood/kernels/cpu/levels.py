"""Instruction levels of the CPU, best first, and which of them this machine has.

DRAFTWOOD_CPU fixes a level: `amx`, `avx512-vnni`, `avx-vnni`, `avx2`, on ARM `neon-i8mm` and `neon-dotprod`, `portable`, or
`stock` for no native code. Every level is batch-invariant; the slower ones are for machines without the instructions, or
without a compiler.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from draftwood.errors import OptionError

SWITCH = "DRAFTWOOD_CPU"
AUTO, STOCK = "auto", "stock"
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Level:
    """Compiler flags, and the CPU flags without which the code would not run."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
_512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
_512_NEEDS = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}

LEVELS = (
    Level("amx", (*_AVX2_FLAGS, *_512, "-mamx-tile", "-mamx-int8"), _512_NEEDS | {"amx_tile", "amx_int8"}),
    Level("avx512-vnni", (*_AVX2_FLAGS, *_512), _512_NEEDS),
    Level("avx-vnni", (*_AVX2_FLAGS, "-mavxvnni"), _AVX2 | {"avx_vnni"}),
    Level("avx2", _AVX2_FLAGS, _AVX2),
    Level("neon-i8mm", ("-march=armv8.2-a+dotprod+i8mm",), frozenset({"asimddp", "i8mm"})),
    Level("neon-dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp"})),
    Level("portable", (), frozenset()),
)


def chosen() -> str:
    """The value of DRAFTWOOD_CPU: the name of a level, `stock`, or `auto`."""
    return os.environ.get(SWITCH, "").strip().lower() or AUTO


def wanted() -> list[Level]:
    """Levels to try, best first; none for `stock`."""
    name = chosen()
    if name == STOCK:
        return []
    if name == AUTO:
        have = cpu_flags()
        return [level for level in LEVELS if level.needs <= have]
    found = [level for level in LEVELS if level.name == name]
    if not found:
        names = ", ".join([*(level.name for level in LEVELS), STOCK])
        raise OptionError(f"{SWITCH} cannot be {name!r}\nhint: one of {names}")
    missing = sorted(found[0].needs - cpu_flags())
    if missing:
        raise OptionError(f"{SWITCH}={name}: this CPU has no {', '.join(missing)}\nhint: leave {SWITCH} unset")
    return found


@cache
def cpu_flags() -> frozenset[str]:
    """The CPU's features by their Linux names; empty where they cannot be read, which leaves the portable level."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        return frozenset()
    try:
        if sys.platform != "darwin":
            return flags_of_linux(CPUINFO.read_text("utf-8"))
        if machine in ("aarch64", "arm64"):
            return flags_of_mac_on_arm(_sysctl("hw.optional.arm"))
        features = _sysctl("-n", "machdep.cpu.features", "machdep.cpu.leaf7_features").lower()
        return frozenset(features.replace("avx1.0", "avx").split())
    except (OSError, subprocess.SubprocessError):
        return frozenset()


def flags_of_linux(cpuinfo: str) -> frozenset[str]:
    """What every processor has: on ARM they may differ. The line is called `flags` on x86 and `Features` on ARM."""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    found = [frozenset(said.split()) for name, _, said in lines if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*found) if found else frozenset()


_MAC_ON_ARM = {"FEAT_DotProd": "asimddp", "FEAT_I8MM": "i8mm"}


def flags_of_mac_on_arm(sysctl: str) -> frozenset[str]:
    """From lines like `hw.optional.arm.FEAT_DotProd: 1`."""
    lines = [line.rpartition(".")[2].split(": ") for line in sysctl.splitlines()]
    return frozenset(_MAC_ON_ARM[name] for name, *said in lines if name in _MAC_ON_ARM and said == ["1"])


def _sysctl(*keys: str) -> str:
    return subprocess.run(["sysctl", *keys], capture_output=True, text=True, timeout=5).stdout
