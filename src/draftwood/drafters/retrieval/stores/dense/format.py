"""The file of a dense datastore, between the ends that `container` writes. Every section begins at a multiple of 64.

    tokens                    what the texts say, a separator after each
    mean, deviation, matrix   the projection from hidden states to keys, float32
    places                    of each key: the token that its hidden state produced, uint32
    keys                      float16 unit vectors
    graph                     for searching the keys, as usearch writes it; empty if usearch was not installed

Sizes of sections follow from a few counts, so a file of the right length has no offset that leads out of it.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from draftwood._version import __version__
from draftwood.core.model_info import ModelInfo
from draftwood.drafters.retrieval.stores import container
from draftwood.drafters.retrieval.stores.container import DENSE, HEAD, count
from draftwood.errors import StoreError

SECTIONS = ("tokens", "mean", "deviation", "matrix", "places", "keys", "graph")
MOST_TOKENS = (1 << 32) - 1  # a place has four bytes


@dataclass(frozen=True, slots=True)
class DenseInfo:
    """What a dense store says of itself. `target` and `backend` are those of the model whose hidden states it holds."""

    vocab_size: int
    hidden_size: int
    target: str  # fingerprint
    backend: str  # as `backend_of` names it
    model: str = ""  # as the builder named it
    dims: int = 0
    num_documents: int = 0
    size: int = 0  # tokens with separators
    num_keys: int = 0
    graph_bytes: int = 0
    graph: str = ""  # program and version that wrote it
    sha256: dict[str, str] = field(default_factory=dict[str, str])  # of each section
    made_by: str = field(default=f"draftwood {__version__}")

    @property
    def separator(self) -> int:
        """One more than the last token id: in no text, and above every token."""
        return self.vocab_size

    @property
    def num_tokens(self) -> int:
        return self.size - self.num_documents

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return 2 if self.vocab_size < 1 << 16 else 4

    def sections(self) -> dict[str, tuple[int, int]]:
        """First byte and number of bytes of each section."""
        sizes = {
            "tokens": self.size * self.width,
            "mean": self.hidden_size * 4,
            "deviation": self.hidden_size * 4,
            "matrix": self.hidden_size * self.dims * 4,
            "places": self.num_keys * 4,
            "keys": self.num_keys * self.dims * 2,
            "graph": self.graph_bytes,
        }
        found, at = dict[str, tuple[int, int]](), HEAD.size
        for name in SECTIONS:
            found[name] = at, sizes[name]
            at = -(-(at + sizes[name]) // 64) * 64
        return found

    @property
    def data_end(self) -> int:
        start, size = self.sections()["graph"]
        return start + size


def backend_of(info: ModelInfo) -> str:
    """How hidden states are computed, as far as it changes them. The instruction set does not: int8 products give equal sums
    on all of them."""
    return f"{info.backend.partition(' ')[0]} {info.dtype}".replace("torch.", "")


def write_ends(file: BinaryIO, info: DenseInfo) -> None:
    container.write_ends(file, DENSE, info.data_end, asdict(info))


def read_info(file: BinaryIO, path: Path) -> DenseInfo:
    """What the ends of the file say. StoreError if it is no dense store, of another version, cut short or changed."""
    info, end = container.read_ends(file, path, DENSE, _parsed)
    if info.data_end != end:
        raise StoreError(f"{path} is damaged: its sections do not fill it\nhint: {DENSE.again}")
    return info


def _parsed(found: dict[str, Any]) -> DenseInfo:
    return DenseInfo(
        vocab_size=count(found["vocab_size"], 1),
        hidden_size=count(found["hidden_size"], 1),
        target=str(found["target"]),
        backend=str(found["backend"]),
        model=str(found["model"]),
        dims=count(found["dims"], 1),
        num_documents=count(found["num_documents"], 1),
        size=count(found["size"], 1),
        num_keys=count(found["num_keys"], 1),
        graph_bytes=count(found["graph_bytes"]),
        graph=str(found["graph"]),
        sha256={name: str(found["sha256"][name]) for name in SECTIONS},
        made_by=str(found["made_by"]),
    )
