"""One round: what it costs beside the model."""

import pytest

from draftwood.core import host
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.models import stacked_attention as stacked
from draftwood.recipes import autoregressive
from draftwood.testing.host_reads import HostReads
from draftwood.testing.runs import make_engine
from draftwood.testing.tiny import tiny_runner


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_plain_round_asks_the_device_a_few_times_whatever_the_number_of_rows(rows, temperature, monkeypatch):
    # Roots and choice. (With a large vocabulary also whether the best tokens hold enough mass for top-p.)
    monkeypatch.setattr(stacked, "stacking_pays", lambda segments: True)
    monkeypatch.setattr(host, "on_host", lambda device: False)  # a processor reads more often, and never waits for it
    model = tiny_runner()
    engine = make_engine(model, autoregressive.build(model), slots=rows)
    for i in range(rows):
        engine.add(
            Request(
                i, [1 + i % 7, 2], SamplingParams(temperature=temperature, top_p=0.98, seed=i), model.info.vocab_size
            )
        )
    engine.step()
    with HostReads() as reads:
        engine.step()
    assert reads.total == 2, reads.by_name
