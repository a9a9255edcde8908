"""Memory for weights, which a pass reads from end to end: page-aligned, on huge pages where the system has them."""

import mmap
import os


def large_pages(size: int) -> mmap.mmap:
    """Fresh memory of at least one byte. Private, because Linux backs only private mappings with huge pages."""
    private = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    memory = mmap.mmap(-1, max(size, 1), **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
