"""Memory for what a pass reads from end to end: it starts on a page, and lies in large ones where the system gives them."""

import mmap
import os


def large_pages(size: int) -> mmap.mmap:
    """At least one byte of fresh memory. Private, because the system gives large pages to that alone."""
    private = {} if os.name == "nt" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    memory = mmap.mmap(-1, max(size, 1), **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
