"""transformers on the same weights: the same greedy text, and an honest count of its passes."""

from dataclasses import replace

import pytest

from draftwood.bench.spec.peers.ours import Ours
from draftwood.bench.spec.peers.transformers import Transformers

pytest.importorskip("transformers")

PROMPT = [104, 101, 108, 108, 111, 32, 104, 101, 108, 108, 111]


@pytest.mark.parametrize("lookup", [False, True])
def test_it_says_what_plain_decoding_says(settings, lookup: bool):
    peer, ours = Transformers(lookup=lookup), Ours()
    assert peer.open(settings)["precision"] == "float32"
    assert ours.open(replace(settings, methods=("autoregressive",), dtype="float32"))["precision"] == "float32"
    said = peer.answer("", PROMPT, 0)
    assert said["tokens"] == ours.answer("autoregressive", PROMPT, 0)["tokens"]
    assert 0 < said["first_seconds"] <= said["seconds"] and said["emitted"] == 10
    assert said["passes"] + said["accepted"] == said["emitted"]
    assert (said["drafted"] >= said["accepted"]) if lookup else (said["drafted"] == 0)


def test_guesses_are_counted_when_the_text_repeats_itself(settings):
    peer = Transformers(lookup=True)
    peer.open(settings)
    said = peer.answer("", PROMPT * 4, 0)
    assert said["drafted"] > 0 and said["passes"] <= said["emitted"]


def test_sampling_follows_its_seed(settings):
    peer = Transformers(lookup=False)
    peer.open(replace(settings, temperature=1.0))
    assert peer.answer("", PROMPT, 0)["tokens"] == peer.answer("", PROMPT, 0)["tokens"]
    assert peer.answer("", PROMPT, 0)["tokens"] != peer.answer("", PROMPT, 1)["tokens"]


@pytest.mark.parametrize(("dtype", "computed"), [("auto", "bfloat16"), ("float32", "float32")])
def test_on_a_device_it_computes_in_the_precision_of_our_recipes(settings, dtype: str, computed: str):
    peer = Transformers(lookup=False)
    facts = peer.open(replace(settings, device="meta", dtype=dtype))
    assert (facts["device"], facts["precision"]) == ("meta", computed)
    assert peer.model.device.type == "meta" and str(peer.model.dtype) == f"torch.{computed}"
