"""Numbers bring dialogues of other kinds along, and their weights know it."""

import pytest

from draftwood.train.data.mixture import MIX, script_weights


def test_shares_are_of_all_dialogues():
    assert abs(sum(MIX.values()) - 1) < 1e-9 and set(MIX) >= {"chat", "retrieval", "summary", "translation"}


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
def test_dialogues_that_other_scripts_yield_are_subtracted(own: float):
    found = script_weights(MIX, own)
    assert set(found) == set(MIX) and all(weight >= 0 for weight in found.values())
    assert found["translation"] < MIX["translation"] and found["extraction"] < MIX["extraction"]
    assert (found["chat"] < MIX["chat"]) == (found["question"] < MIX["question"]) == (own > 0)
    assert found["math"] == MIX["math"]


def test_kinds_that_are_not_named_are_left_out():
    assert script_weights({"retrieval": 0.7, "extraction": 0.1}, 1.0).keys() == {"retrieval", "extraction"}
    assert script_weights({"math": 1.0}, 0.5) == {"math": 1.0}
