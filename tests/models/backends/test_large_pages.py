"""Memory that the system may give in large pages: advised, and private."""

import mmap
from pathlib import Path

import pytest
import torch

from draftwood.bench.micro.target_pass import Probe
from draftwood.models.backends.large_pages import large_pages

SMAPS = Path("/proc/self/smaps")


def flags(address: int) -> set[str]:
    """What the system notes about the mapping that holds an address: `hg` large pages advised, `sh` shared."""
    here = False
    for line in SMAPS.read_text().splitlines() if SMAPS.exists() else ():
        first, *rest = line.split()
        if not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
            here = low <= address < high
        elif here and first == "VmFlags:":
            return set(rest)
    pytest.skip("this system does not tell")


def address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def test_memory_is_of_the_kind_that_gets_large_pages():
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("no such pages")
    memory = large_pages(4 << 20)
    probe = Probe(4 << 20)
    for place in (address(memory), probe.words.data_ptr()):
        assert "hg" in flags(place) and "sh" not in flags(place)
    plain = mmap.mmap(-1, 4 << 20)
    assert "hg" not in flags(address(plain)) and "sh" in flags(address(plain))


@pytest.mark.parametrize("size", [0, 1, 4097])
def test_memory_is_as_long_as_asked_for_and_empty(size):
    memory = large_pages(size)
    assert len(memory) == max(size, 1) and not any(memory[:])
    memory[-1] = 7
    assert memory[-1] == 7 and address(memory) % mmap.PAGESIZE == 0
