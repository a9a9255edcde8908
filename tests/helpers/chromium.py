"""A headless Chromium with an empty profile, for tests marked `browser`."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def chromium(page: Path, *flags: str) -> str:
    """Open a file and do what the flags say; the standard output."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium found")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", *flags, page.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()
