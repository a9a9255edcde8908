import random
import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from draftwood.errors import WeightsError
from draftwood.models.loading.gguf.header import TYPES, read_header


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_of(keys: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def read(tmp_path: Path):
    def read(data: bytes):
        path = tmp_path / "x.gguf"
        path.write_bytes(data)
        return read_header(path)

    return read


def test_reads_what_the_gguf_package_writes(write_gguf, tiny):
    path = write_gguf()
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF."):
            value = ours.metadata[name]
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == field.contents()
    assert len(ours.tensors) == len(theirs.tensors) == 2 + 9 * tiny.num_layers
    for info in theirs.tensors:
        mine = ours.tensors[info.name]
        assert (list(reversed(mine.shape)), mine.type) == (info.shape.tolist(), info.tensor_type)
        assert (mine.offset, mine.num_bytes) == (info.data_offset, info.n_bytes)


def test_block_sizes_are_those_of_the_gguf_package():
    for kind, (label, block, size) in TYPES.items():
        known = gguf.GGMLQuantizationType(kind)
        assert (known.name, *gguf.GGML_QUANT_SIZES[known]) == (label, block, size)


def test_every_kind_of_value_is_read(read):
    header = read(
        file_of(
            [
                key("u8", 0, b"\xff"),
                key("i8", 1, b"\xff"),
                key("i16", 3, struct.pack("<h", -300)),
                key("u64", 10, struct.pack("<Q", 2**63)),
                key("f64", 12, struct.pack("<d", 0.1)),
                key("bool", 7, b"\1"),
                key("text", 8, text("grüße")),
                key("nested", 9, struct.pack("<IQIQ", 9, 1, 8, 2) + text("a") + text("b")),
            ],
            [tensor("w", [2, 3])],
            b"\0" * 24,
        )
    )
    assert header.metadata == {
        "u8": 255, "i8": -1, "i16": -300, "u64": 2**63, "f64": 0.1, "bool": True,
        "text": "grüße", "nested": [["a", "b"]]
    }  # fmt: skip
    assert header.tensors["w"].shape == (3, 2)


def test_version_2_is_read_as_well(read):
    assert read(file_of([], [], version=2)).version == 2


HUGE = struct.pack("<Q", 2**62)
BROKEN = {
    "empty": (b"", "too few"),
    "other magic": (b"GGML" + bytes(40), "not a GGUF file"),
    "version 1": (file_of([], [], version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (b"GGUF" + struct.pack("<I", 3) + HUGE + bytes(40), "num_tensors: 4611686018427387904 entries"),
    "key count": (b"GGUF" + struct.pack("<IQ", 3, 0) + HUGE + bytes(40), "num_keys: 4611686018427387904 entries"),
    "string length": (file_of([key("a", 8, HUGE)], []), "a: 4611686018427387904 bytes announced"),
    "number array": (file_of([key("a", 9, struct.pack("<I", 5) + HUGE)], []), "length of a: 4611686018427387904"),
    "string array": (file_of([key("a", 9, struct.pack("<I", 8) + HUGE)], []), "length of a: 4611686018427387904"),
    "deep nesting": (file_of([key("a", 9, struct.pack("<IQ", 9, 1) * 99)], []), "nested more than"),
    "value type": (file_of([key("a", 77, bytes(8))], []), "a: unknown value type 77"),
    "element type": (file_of([key("a", 9, struct.pack("<IQ", 77, 1))], []), "a: unknown element type 77"),
    "not UTF-8": (file_of([key("a", 8, struct.pack("<Q", 1) + b"\xff")], []), "a: not UTF-8"),
    "key twice": (file_of([key("a", 0, b"1"), key("a", 0, b"1")], []), "key 'a': appears twice"),
    "alignment": (file_of([key("general.alignment", 4, struct.pack("<I", 24))], []), "24 is not a power of two"),
    "no alignment": (file_of([key("general.alignment", 4, bytes(4))], []), "0 is not a power of two"),
    "no dims": (file_of([], [tensor("w", [])]), "dimensions of tensor 'w': 0"),
    "five dims": (file_of([], [tensor("w", [1] * 5)]), "dimensions of tensor 'w': 5"),
    "empty tensor": (file_of([], [tensor("w", [4, 0])]), "shape of tensor 'w'"),
    "overflowing shape": (file_of([], [tensor("w", [2**33, 2**33])]), "tensor 'w': ends at byte"),
    "rows of half blocks": (
        file_of([], [tensor("w", [48], kind=8)], bytes(64)),
        "48. does not divide into Q8_0 blocks",
    ),
    "unknown type": (file_of([], [tensor("w", [32], kind=99)], bytes(64)), r"'w' has GGML type unknown \(99\)"),
    "known type": (file_of([], [tensor("w", [256], kind=16)], bytes(128)), r"'w' has GGML type IQ2_XXS \(16\)"),
    "offset beyond": (file_of([], [tensor("w", [4], offset=2**40)], bytes(16)), "tensor 'w': ends at byte"),
    "odd offset": (file_of([], [tensor("w", [4], offset=8)], bytes(64)), "8 is not a multiple of 32"),
    "overlap": (file_of([], [tensor("v", [16]), tensor("w", [16], offset=32)], bytes(99)), "lies inside"),
    "tensor twice": (
        file_of([], [tensor("w", [8]), tensor("w", [8], offset=32)], bytes(64)),
        "tensor 'w': appears twice",
    ),
    "truncated data": (file_of([], [tensor("w", [8])], bytes(31)), "tensor 'w': ends at byte"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused_with_its_name_and_field(read, case):
    data, message = BROKEN[case]
    with pytest.raises(WeightsError, match=message) as caught:
        read(data)
    assert "x.gguf" in str(caught.value)


def test_announced_sizes_are_never_allocated(read):
    tracemalloc.start()
    for data, _ in BROKEN.values():
        with pytest.raises(WeightsError):
            read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_no_truncation_and_no_flipped_byte_ends_in_a_foreign_error(write_gguf, tmp_path: Path):
    whole = write_gguf().read_bytes()
    start = min(info.offset for info in read_header(tmp_path / "model.gguf").tensors.values())
    damaged = tmp_path / "damaged.gguf"
    noise = random.Random(0)
    refused = 0
    for trial in range(600):
        data = bytearray(whole)
        if trial % 3 == 0:
            del data[noise.randrange(len(data)) :]
        else:
            for _ in range(noise.choice([1, 1, 8])):
                data[noise.randrange(start)] = noise.randrange(256)
        damaged.write_bytes(data)
        try:
            read_header(damaged)
        except WeightsError:
            refused += 1
    assert refused > 200  # every truncation at the least; a changed letter of a token is nobody's error


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(WeightsError, match=r"none\.gguf: cannot be read"):
        read_header(tmp_path / "none.gguf")


def test_reading_a_header_needs_no_gguf_package(child_env, write_gguf):
    import subprocess

    code = "import sys; from pathlib import Path; from draftwood.models.loading.gguf.header import read_header; "
    code += "read_header(Path(sys.argv[1])); assert 'gguf' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(write_gguf())], env=child_env(), check=True)
