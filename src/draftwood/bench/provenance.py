"""Provenance of a result: command, version, commit, machine, device, load. Printed and saved with every result."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from draftwood._version import __version__
from draftwood.bench.other_processes import load_average
from draftwood.kernels.cpu.library import SPIN_US
from draftwood.kernels.cpu.processor import processor_name


def provenance(backend: str | None = None, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What is needed to repeat a measurement. `backend`: what computed, see models/backends; `device`: where."""
    return {
        "command": " ".join(["draftwood", *sys.argv[1:]]),
        "draftwood": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": processor_name(),
        "device": device_name(device),
        **({"cuda": torch.version.cuda} if torch.device(device).type == "cuda" else {}),
        "threads": torch.get_num_threads(),
        "idle threads": f"kernel helpers sleep after {SPIN_US} us; GOMP_SPINCOUNT={os.environ.get('GOMP_SPINCOUNT')}",
        **({} if backend is None else {"backend": backend}),
        "load": load_average(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def device_name(device: torch.device | str) -> str:
    """A GPU by its product name; any other device as torch spells it. The CPU's own name is in the provenance."""
    found = torch.device(device)
    return torch.cuda.get_device_name(found) if found.type == "cuda" else str(found)


def _commit() -> str | None:
    """The commit of the checkout that this package runs from, with -dirty where files of the package differ from it; None
    for an installed package. Other files do not matter: a table of results may be rewritten while its run goes on."""
    try:
        name = _git("describe", "--always")
        return f"{name}-dirty" if _git("status", "--porcelain", "--untracked-files=no", "--", ".") else name
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    package = Path(__file__).parents[1]
    done = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()
