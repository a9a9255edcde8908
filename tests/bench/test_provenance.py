"""A result names the device that made it."""

import subprocess
from pathlib import Path

import pytest
import torch

from draftwood.bench import provenance as module
from draftwood.bench.provenance import device_name, provenance


def test_a_gpu_is_named_by_its_product(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H200 number {device.index}")
    assert device_name("cuda:1") == "NVIDIA H200 number 1"
    source = provenance("bfloat16", torch.device("cuda:1"))
    assert (source["device"], source["backend"]) == ("NVIDIA H200 number 1", "bfloat16")
    assert source["cuda"] == torch.version.cuda


def test_a_cpu_is_the_device_where_none_is_given():
    source = provenance("int8")
    assert source["device"] == "cpu" and source["cpu"] and "cuda" not in source


def test_only_files_of_the_package_make_a_commit_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package, page = tmp_path / "package", tmp_path / "docs.md"
    (package / "bench").mkdir(parents=True)
    code = package / "code.py"
    for file in (code, page):
        file.write_text("1\n")
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(module, "__file__", str(package / "bench" / "provenance.py"))
    clean = provenance()["commit"]
    page.write_text("a table of results\n")
    assert clean and provenance()["commit"] == clean
    code.write_text("2\n")
    assert provenance()["commit"] == f"{clean}-dirty"
