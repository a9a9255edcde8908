"""A trace file is readable up to its last whole round, however the run ended; what is no trace is refused with its place."""

import gzip
import json
from pathlib import Path

import pytest

from draftwood.bench.trace.file import TraceWriter, records
from draftwood.bench.trace.records import Header, Record
from draftwood.bench.trace.trace import read
from draftwood.errors import TraceError
from recorded_runs import header, recorded


@pytest.fixture(scope="module")
def made() -> list[Header | Record]:
    return recorded("prompt_lookup", 3)[1]


def write(path: Path, made: list[Header | Record], *, close: bool = True) -> Path:
    first, *rest = made
    assert isinstance(first, Header)
    writer = TraceWriter(path, first)
    for record in rest:
        assert not isinstance(record, Header)
        writer(record)
    if close:
        writer.close()
    writer.abandon()
    return path


def test_what_is_written_is_read_back(tmp_path, made):
    found = list(records(write(tmp_path / "t", made)))
    lines = [each.line() for each in made]
    assert [each.line() for each in found] == json.loads(json.dumps(lines))


def test_it_is_one_gzip_stream_of_json_lines(tmp_path, made):
    path = write(tmp_path / "t", made)
    text = gzip.decompress(path.read_bytes()).decode()
    assert [json.loads(line) for line in text.splitlines()] == [each.line() for each in made]
    (tmp_path / "plain").write_text(text)
    assert list(records(tmp_path / "plain")) == list(records(path)), "unpacked by hand it can be read as well"


def test_a_killed_run_leaves_all_of_its_rounds(tmp_path, made):
    assert len(list(records(write(tmp_path / "t", made, close=False)))) == len(made)


def test_a_file_cut_anywhere_is_read_up_to_the_last_whole_line(tmp_path, made):
    data = write(tmp_path / "t", made).read_bytes()
    whole = list(records(tmp_path / "t"))
    sizes: list[int] = []
    for end in range(0, len(data), 17):
        path = tmp_path / "cut"
        path.write_bytes(data[:end])
        found = list(records(path))
        assert found == whole[: len(found)]
        sizes.append(len(found))
    assert sizes == sorted(sizes) and sizes[0] == 0 and len(set(sizes)) > len(made) // 2, "and loses no more than that"


@pytest.mark.parametrize(
    "bad",
    ['{"t": [1]}', "[]", '"t"', "{", '{"who": 1}', "7", '{"ask": 0}'],
)
def test_a_line_that_is_no_record_is_named(tmp_path, made, bad):
    lines = [json.dumps(each.line()) for each in made]
    lines[2] = bad
    (tmp_path / "t").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match="line 3 is no record"):
        read(tmp_path / "t")


def test_damage_inside_the_stream_is_refused(tmp_path, made):
    data = bytearray(write(tmp_path / "t", made).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TraceError, match=r"damaged|contradicts|no record"):
        read(tmp_path / "t")


def test_two_writers_cannot_have_one_file(tmp_path):
    writer = TraceWriter(tmp_path / "t", header())
    before = (tmp_path / "t").read_bytes()
    with pytest.raises(TraceError, match=r"exists already\nhint"):
        TraceWriter(tmp_path / "t", header())
    writer.abandon()
    assert (tmp_path / "t").read_bytes() == before
    with pytest.raises(TraceError, match="cannot be written"):
        TraceWriter(tmp_path / "no such folder" / "t", header())


@pytest.mark.parametrize("text", ["", '{"trace": 99}\n', "hello\n", '{"model": 1}\n'])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceError, match=r"empty|has format 99|no trace"):
        read(tmp_path / "t")
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "missing")


def test_a_trace_without_rounds_is_refused(tmp_path, made):
    write(tmp_path / "t", made[:2])
    with pytest.raises(TraceError, match="holds no rounds"):
        read(tmp_path / "t")
