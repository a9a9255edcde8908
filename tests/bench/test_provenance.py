"""A result names the device that made it."""

import pytest
import torch

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
