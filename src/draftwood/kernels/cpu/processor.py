"""The name of this machine's processor."""

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def processor_name() -> str:
    """As far as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
