"""ctypes bindings of the compiled kernels: structures that mirror the C++ ones, and one signature per function."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_ENTRIES = 32  # entries of a block of a cache, where a segment names blocks
SPIN_US = 1000  # how long an idle worker thread spins: longer than the Python between two calls of a round


class Matrix(ctypes.Structure):
    """`rest`: the rows below these, if they are of another block type. The structure keeps it alive."""


Matrix._fields_ = [
    *((name, c_void_p) for name in ("data", "bias")),
    *((name, c_int32) for name in ("rows", "columns", "kind")),
    ("rest", POINTER(Matrix)),
]


class Layer(ctypes.Structure):
    _fields_ = [
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, c_void_p) for name in ("post_attention_norm", "post_mlp_norm")),
        *((name, c_int32) for name in ("window", "local")),
    ]


class Reader(ctypes.Structure):
    _fields_ = [
        ("layer", Layer),
        *((name, Matrix) for name in ("embedding", "join", "head", "side_up", "side_down", "predict")),
        *((name, c_void_p) for name in ("embed_norm", "feature_norm", "norm", "fused_norm", "side_norm")),
        ("more", POINTER(Layer)),
        *((name, c_int32) for name in ("deeper", "normed_residual", "normed_output")),
    ]


class Segment(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("slot", "start", "stop", "committed", "staged")),
        ("visible", c_void_p),
        ("blocks", c_void_p),
    ]


class Store(ctypes.Structure):
    _fields_ = [("keys", c_void_p), ("values", c_void_p)]


class Shape(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim", "inner", "window")),
        ("eps", c_float),
        ("gelu", c_int32),
        *((name, c_float) for name in ("scale", "cap")),
    ]


class CacheLayout(ctypes.Structure):
    _fields_ = [("slot_stride", c_int64), ("head_stride", c_int64), ("entries", c_void_p)]


class Pass(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("tokens", "segments")),
        ("segment", POINTER(Segment)),
        ("cache", CacheLayout),
        ("stores", POINTER(Store)),
        *((name, c_void_p) for name in ("positions", "cos", "sin", "local_cos", "local_sin")),
    ]


class SuffixRule(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("nodes", "levels", "tree")),
        *((name, c_double) for name in ("factor", "offset", "least")),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "draftwood_threads": (None, [c_int, c_int]),
    "draftwood_layers": (
        None,
        [
            POINTER(Shape),
            POINTER(Layer),
            c_int,
            c_int,
            POINTER(c_uint8),
            POINTER(c_int32),
            POINTER(Pass),
            c_void_p,
            c_void_p,
            POINTER(c_int32),
            c_int,
            c_void_p,
        ],
    ),
    "draftwood_head": (None, [POINTER(Matrix), c_void_p, c_float, *2 * [c_void_p], c_int, c_void_p, c_int64, c_void_p]),
    "draftwood_features": (
        c_int,
        [POINTER(Shape), POINTER(Reader), POINTER(Pass), *4 * [c_void_p], c_int, c_void_p, c_int64],
    ),
    "draftwood_line": (
        c_int,
        [
            POINTER(Shape),
            POINTER(Reader),
            POINTER(Pass),
            *4 * [c_void_p],
            c_float,
            c_void_p,
            c_int,
            c_int,
            c_float,
            *2 * [c_void_p],
        ],
    ),
    "draftwood_drawn_line": (
        c_int,
        [POINTER(Shape), POINTER(Reader), POINTER(Pass), *4 * [c_void_p], c_float, c_void_p, c_int, *4 * [c_void_p]],
    ),
    "draftwood_shares": (c_int, [c_void_p, c_int64, c_int, c_int, *2 * [c_void_p]]),
    "draftwood_block": (
        c_int,
        [
            c_void_p,
            c_int64,
            c_int64,
            c_void_p,
            c_int,
            c_int,
            c_float,
            c_void_p,
            c_int64,
            c_int,
            *5 * [c_void_p],
        ],
    ),
    "draftwood_left": (c_int64, [c_void_p, c_int, c_float, c_double, c_void_p, c_int, *2 * [c_void_p]]),
    "draftwood_rank": (None, [c_void_p, c_int64, c_int, c_int, POINTER(c_float), c_int, *3 * [c_void_p]]),
    "draftwood_nucleus": (c_int64, [c_void_p, c_int64, c_int64, c_void_p, c_int, c_int, *5 * [c_void_p]]),
    "draftwood_pick": (c_int, [c_void_p, c_int64, c_int64, c_void_p, c_int, c_int, *6 * [c_void_p]]),
    "draftwood_nucleus_read": (None, [c_int, c_void_p, c_void_p]),
    "draftwood_beside": (c_int, [c_int, c_int, c_int, c_int, c_void_p, c_void_p, c_int64, *5 * [c_void_p]]),
    "draftwood_embed": (c_int, [POINTER(Matrix), c_void_p, c_int, c_void_p]),
    "draftwood_cap": (None, [c_void_p, c_int64, c_int, c_int, c_float]),
    "draftwood_norm": (None, [c_void_p, c_void_p, c_float, c_int, c_int, c_void_p]),
    "draftwood_product": (None, [POINTER(Matrix), c_void_p, c_int, c_void_p]),
    "draftwood_dots": (c_int32, [c_int64]),
    "draftwood_read": (c_uint64, [c_void_p, c_int64]),
    "draftwood_suffix_new": (c_void_p, [c_int32]),
    "draftwood_suffix_free": (None, [c_void_p]),
    "draftwood_suffix_append": (None, [c_void_p, c_int64, c_void_p, c_int32]),
    "draftwood_suffix_remove": (None, [c_void_p, c_int64]),
    "draftwood_suffix_count": (c_int32, [c_void_p, c_void_p, c_int32]),
    "draftwood_suffix_sizes": (None, [c_void_p, c_void_p]),
    "draftwood_suffix_draft": (
        c_int32,
        [*2 * [c_void_p], c_int32, POINTER(SuffixRule), *3 * [c_void_p], POINTER(c_double), POINTER(c_int32)],
    ),
    "draftwood_begin": (c_int, []),
    "draftwood_try": (c_int, []),
}


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """Kernels of one level. Calls release the GIL. Two at once are safe; the second runs on one thread."""

    level: str
    calls: ctypes.CDLL

    @classmethod
    def open(cls, level: str, path: Path) -> "Library":
        calls = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(calls, name)
            function.restype, function.argtypes = result, arguments
        if calls.draftwood_begin():
            raise OSError(f"the operating system does not grant the CPU units that {path.name} needs")
        return cls(level, calls)

    def threads(self, count: int) -> None:
        self.calls.draftwood_threads(count, SPIN_US)
