"""The kernels of a 64-bit ARM processor, compiled by a cross compiler and run by QEMU, behind the interface of the others.

A call takes along the memory that its arguments reach: structures are followed, and tensors are found by their addresses.
What the call wrote comes back into the same tensors.
"""

import ctypes
import gc
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from draftwood.cache.blocks import Blocks
from draftwood.kernels.cpu import build
from draftwood.kernels.cpu import library as native
from draftwood.kernels.cpu.levels import Level
from draftwood.kernels.cpu.library import Library

GCC, CLANG, EMULATOR = ("aarch64-linux-gnu-g++",), ("clang++", "--target=aarch64-linux-gnu"), "qemu-aarch64"
MISSING = [name for name in (*GCC, EMULATOR) if shutil.which(name) is None]
DRIVER = Path(__file__).with_name("emulated_calls.cpp")
# How many structures a field points to.
_COUNTS: dict[str, Callable[[Any], int]] = {
    "rest": lambda _: 1,
    "segment": lambda passed: passed.segments,
    "more": lambda reader: reader.deeper,
}


def compiled(level: Level, folder: Path, sources: Path = build.SOURCES, compiler: tuple[str, ...] = GCC) -> Path:
    """The program that answers calls with the kernels of `sources`."""
    path = folder / f"{level.name}-calls"
    flags = [flag for flag in build.FLAGS if flag not in ("-fPIC", "-shared")]
    files = [*map(str, sorted(sources.glob("*.cpp"))), str(DRIVER)]
    subprocess.run([*compiler, *flags, *level.flags, "-static", *files, "-o", str(path)], check=True, timeout=900)
    return path


def emulated(level: Level, program: Path) -> Library:
    return Library(level.name, EmulatedCalls(program))  # type: ignore[arg-type]


class EmulatedCalls:
    """Takes the place of a loaded library. One process answers all calls."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen(
            [EMULATOR, "-cpu", "max", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self.process.communicate()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            result, types = native._SIGNATURES[name]
            return self._call(name, result, list(zip(types, arguments, strict=True)))

        return call

    def _call(self, name: str, result: Any, arguments: Sequence[tuple[Any, Any]]) -> int:
        image = _Image(_layers(name, [value for _, value in arguments]))
        given = b"".join(image.argument(kind, value) for kind, value in arguments)
        pieces = sorted(image.pieces.items())
        said = [name.encode().ljust(32, b"\0"), struct.pack("<I", len(pieces))]
        for address, size in pieces:
            said += [struct.pack("<QQ", address, size), ctypes.string_at(address, size)]
        places = sorted(image.pointers)
        said += [struct.pack("<I", len(places))]
        said += [struct.pack("<Q", place) for place in places]
        said += [struct.pack("<I", len(arguments)), given]
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"".join(said))
        self.process.stdin.flush()
        read = self.process.stdout.read
        (found,) = struct.unpack("<q", read(8))
        for address, size in pieces:
            ctypes.memmove(address, read(size), size)
        return result(found).value if result is not None else 0


def _layers(name: str, arguments: Sequence[Any]) -> int:
    """How many layers have KV entries in a pass."""
    if name == "draftwood_layers":
        return arguments[3]
    return 1 + arguments[1]._obj.deeper if name in _LINES else 0


_LINES = ("draftwood_features", "draftwood_line", "draftwood_drawn_line")


class _Image:
    def __init__(self, layers: int) -> None:
        self.counts = _COUNTS | {"stores": lambda _: layers}
        self.pieces: dict[int, int] = {}  # address -> bytes
        self.pointers: set[int] = set()  # where they are
        self.tensors: dict[int, int] | None = None

    def argument(self, kind: Any, value: Any) -> bytes:
        if kind is ctypes.c_float:
            return struct.pack("<cd", b"f", value)
        if value is None:
            return struct.pack("<cq", b"i", 0)
        if kind is ctypes.c_void_p and isinstance(value, int):
            return struct.pack("<cQ", b"p", self.tensor(value))
        if kind is ctypes.c_void_p or issubclass(kind, ctypes._Pointer):
            return struct.pack("<cQ", b"p", self.structures(getattr(value, "_obj", value)))
        return struct.pack("<cq", b"i", value)

    def tensor(self, address: int) -> int:
        """Takes along the tensor in which an address lies."""
        if self.tensors is None:
            live = [x.untyped_storage() for x in gc.get_objects() if type(x) is torch.Tensor and x.device.type == "cpu"]
            self.tensors = {storage.data_ptr(): storage.nbytes() for storage in live}
            tables = [x.rows for x in gc.get_objects() if type(x) is Blocks]  # numpy arrays, which gc does not list
            self.tensors |= {table.ctypes.data: table.nbytes for table in tables}
        begin = max(start for start, size in self.tensors.items() if start <= address <= start + size)
        self.pieces[begin] = self.tensors[begin]
        return address

    def structures(self, found: Any, count: int = 1) -> int:
        """An array, a pointer to `count` structures, or one of them."""
        if isinstance(found, ctypes._Pointer):
            address, kind = ctypes.addressof(found.contents), found._type_
        elif isinstance(found, ctypes.Array):
            address, kind, count = ctypes.addressof(found), found._type_, len(found)
        else:
            address, kind = ctypes.addressof(found), type(found)
        if count and self.pieces.get(address, 0) < ctypes.sizeof(kind) * count:
            self.pieces[address] = ctypes.sizeof(kind) * count
            for i in range(count if issubclass(kind, ctypes.Structure) else 0):
                self._follow(kind.from_address(address + i * ctypes.sizeof(kind)))
        return address

    def _follow(self, one: Any) -> None:
        for name, kind in one._fields_:
            value, place = getattr(one, name), ctypes.addressof(one) + getattr(type(one), name).offset
            if issubclass(kind, ctypes.Structure):
                self._follow(value)
            elif value and kind is ctypes.c_void_p:
                self.pointers.add(place)
                self.tensor(value)
            elif value and issubclass(kind, ctypes._Pointer):
                self.pointers.add(place)
                self.structures(value, self.counts[name](one))
