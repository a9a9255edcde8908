"""Acceptance is measured once, kept in the user's cache, and never taken from another target or drafter."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.sizing import remembered, sibling_acceptance
from draftwood.sizing.sibling_acceptance import measured_acceptance
from draftwood.testing.parts.tiny import tiny_runner


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    return tmp_path


def drafter(target: Any, layers: int) -> Any:
    return recipes.drafter(f"speculative_sampling:draft=first:{layers}", target)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    target = tiny_runner(2)
    whole = drafter(target, target.info.num_layers)
    assert measured_acceptance(target, whole, "whole", 0.0) == (1.0,)
    sampled = measured_acceptance(target, drafter(target, 1), "part", 1.0)
    assert 0 < sum(sampled) <= 1 and list(sampled) == sorted(sampled, reverse=True)


def test_it_is_measured_once_and_read_from_the_cache(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(remembered, "fingerprint", lambda target: "0123")
    asked: list[str] = []
    measure = sibling_acceptance._measured

    def counted(*args: Any) -> tuple[float, ...]:
        asked.append(args[2])
        return measure(*args)

    monkeypatch.setattr(sibling_acceptance, "_measured", counted)
    first, second = tiny_runner(2), tiny_runner(2)
    found = measured_acceptance(first, drafter(first, 1), "part", 0.0)
    assert measured_acceptance(first, drafter(first, 1), "part", 0.0) == found and asked == ["part"]
    assert measured_acceptance(second, drafter(second, 1), "part", 0.0) == found and asked == ["part"], "from the cache"
    measured_acceptance(second, drafter(second, 1), "part", 1.0)
    measured_acceptance(second, drafter(second, 2), "other", 0.0)
    assert asked == ["part", "part", "other"], "another temperature, another drafter"
    assert {json.loads(f.read_text())["of"] for f in own_cache.glob("acceptance/*.json")} == {
        "part 0",
        "part 1",
        "other 0",
    }


def test_a_damaged_file_is_measured_again(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setattr(remembered, "fingerprint", lambda target: "0123")
    target = tiny_runner(2)
    found = measured_acceptance(target, drafter(target, 1), "part", 0.0)
    (file,) = own_cache.glob("acceptance/*.json")
    file.write_text("{")
    other = tiny_runner(2)
    assert measured_acceptance(other, drafter(other, 1), "part", 0.0) == found
