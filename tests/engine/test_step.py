"""One round: what it costs beside the model."""

from collections import Counter

import pytest
import torch

from draftwood.core import host
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.models import stacked_attention as stacked
from draftwood.recipes import autoregressive
from draftwood.testing.runs import make_engine
from draftwood.testing.tiny import tiny_decoder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rows", [2, 40])
def test_plain_round_asks_the_device_a_few_times_whatever_the_number_of_rows(rows, temperature, monkeypatch):
    # Roots and choice. (With a large vocabulary also whether the best tokens hold enough mass for top-p.)
    monkeypatch.setattr(stacked, "stacking_pays", lambda segments, device: True)
    monkeypatch.setattr(host, "on_host", lambda device: False)  # a processor asks more often, and never waits for it
    model = tiny_decoder()
    engine = make_engine(model, autoregressive.build(model), slots=rows)
    for i in range(rows):
        engine.add(
            Request(i, [1 + i % 7, 2], SamplingParams(temperature=temperature, top_p=0.98, seed=i), model.vocab_size)
        )
    engine.step()
    asked: Counter[str] = Counter()
    for name in ("tolist", "item", "__bool__", "__int__", "cpu", "numpy"):
        real = getattr(torch.Tensor, name)

        def counted(self, *args, real=real, name=name):
            asked[name] += 1
            return real(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    engine.step()
    assert asked.total() == 2, asked
