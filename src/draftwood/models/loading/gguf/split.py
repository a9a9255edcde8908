"""A GGUF model in one file or in several: `NAME-00001-of-00003.gguf` and its neighbours."""

import re
from pathlib import Path

from draftwood.errors import WeightsError
from draftwood.models.loading.gguf.header import Header, TensorInfo, read_header

PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})(?P<end>\.gguf)", re.IGNORECASE)


def parts_of(path: Path) -> list[Path]:
    """The files of a model, of which `path` is any one: the file itself, or all `-0000I-of-0000N.gguf` beside it."""
    match = PART.fullmatch(path.name)
    if match is None or int(match["count"]) < 2:
        return [path]
    count = int(match["count"])
    found = [path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}{match['end']}") for i in range(count)]
    missing = [each.name for each in found if not each.is_file()]
    if missing:
        raise WeightsError(
            f"{path}: {len(missing)} of {count} parts of this model are missing: {', '.join(missing[:8])}\n"
            "hint: all parts must lie in one folder; the download is incomplete"
        )
    return found


def read_model(path: Path) -> Header:
    """The header of a whole model: of the file, or of all parts of a split one together. The first part's metadata count."""
    files = parts_of(path)
    headers = [read_header(file) for file in files]
    first = headers[0]
    if len(headers) == 1 and first.metadata.get("split.count", 1) not in (0, 1):
        raise WeightsError(
            f"{path}: one of {first.metadata['split.count']} parts of a split model, but its name does not say which\n"
            "hint: give the parts the names they were made with: NAME-00001-of-0000N.gguf"
        )
    tensors: dict[str, TensorInfo] = {}
    for index, header in enumerate(headers):
        said = header.metadata.get("split.no", 0), header.metadata.get("split.count", len(headers))
        if len(headers) > 1 and said != (index, len(headers)):
            raise WeightsError(
                f"{header.path}: holds part {said[0]} (from 0) of {said[1]}, not part {index} of {len(headers)}\n"
                "hint: the parts belong to different models, or one was renamed"
            )
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise WeightsError(f"{header.path}: tensor {min(twice)!r} is in another part too")
        tensors |= header.tensors
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise WeightsError(
            f"{path}: the parts hold {len(tensors)} tensors, split.tensors.count says {total}\n"
            "hint: the parts belong to different models"
        )
    return Header(first.path, first.version, first.metadata, tensors)
