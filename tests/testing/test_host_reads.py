"""Every way to make the host wait is counted once, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core import host
from draftwood.testing.host_reads import HostReads, as_if_on_a_device

X = torch.tensor([3, 0, 2])
MASK = X > 0


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda: X.tolist(), "tolist"),
        (lambda: X[0].item(), "item"),
        (lambda: bool(MASK.any()), "__bool__"),
        (lambda: int(X.max()), "__int__"),
        (lambda: float(X.sum()), "__float__"),
        (lambda: [0, 1, 2, 3][X[0]], "__index__"),
        (lambda: X.cpu(), "cpu"),
        (lambda: X.numpy(), "numpy"),
        (lambda: MASK.nonzero(), "nonzero"),
        (lambda: X[MASK], "index"),
        (lambda: X.clone().masked_select(MASK), "masked_select"),
        (lambda: X.unique(), "_unique2"),
        (lambda: X.repeat_interleave(X), "repeat_interleave"),
        (lambda: torch.equal(X, X), "equal"),
    ],
)
def test_what_the_host_would_wait_for_is_counted(read: Callable[[], Any], name: str) -> None:
    with HostReads() as reads:
        read()
    assert name in reads.by_name and reads.total == reads.by_name[name] == 1, reads.by_name


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.where(MASK, X, -1).cumsum(0),
        lambda: X[torch.tensor([2, 0])] + X.gather(0, torch.tensor([1])),
        lambda: X.masked_fill(MASK, 7).sort().values.topk(2),
        lambda: host.put([1, 2, 3], "cpu"),
        lambda: (X.shape[0], X.dtype, X.device, len(X)),
        lambda: X.repeat_interleave(2),
    ],
)
def test_work_that_stays_on_the_device_is_not_counted(work: Callable[[], Any]) -> None:
    with HostReads() as reads:
        work()
    assert reads.total == 0, reads.by_name


def test_a_dispatch_mode_alone_would_miss_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: why there are two modes."""
    monkeypatch.setattr("draftwood.testing.host_reads._READS", frozenset[str]())
    with HostReads() as reads:
        X.tolist()
    assert reads.total == 0


def test_no_device_is_the_host_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.on_host("cpu")
    with as_if_on_a_device():
        assert not host.on_host("cpu")
    assert host.on_host("cpu")


def test_nothing_is_counted_behind_the_end() -> None:
    with HostReads() as reads:
        made: Tensor = X + 1
    made.tolist()
    assert reads.total == 0
