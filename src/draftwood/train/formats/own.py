"""Our own format: one safetensors file, see drafters/nets/store.py."""

from pathlib import Path

from draftwood.drafters.nets.store import Head, to_bytes
from draftwood.train.formats.exchange import Exchange
from draftwood.train.loop.checkpoint import replace_file


def write(head: Head, out: Path, exchange: Exchange) -> None:
    """Matrices in 8 bits unless floats were asked for."""
    replace_file(out, to_bytes(head, floats=exchange.floats))
