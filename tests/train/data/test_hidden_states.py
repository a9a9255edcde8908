"""Hidden states of texts read together are those of each text alone, and those that drafters are shown."""

import numpy as np
import pytest
import torch

from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.data.hidden_states import final_states


def test_states_are_the_same_alone_and_produce_the_targets_tokens() -> None:
    runner = tiny_runner(1)
    read = final_states(runner)
    texts = [np.arange(1, 20), np.array([5]), np.array([7, 7, 3])]
    together = read(texts)
    assert [each.shape for each in together] == [(len(text), CONFIG.hidden_size) for text in texts]
    for text, each in zip(texts, together, strict=True):
        np.testing.assert_allclose(read([text])[0], each, rtol=1e-5, atol=1e-6)
    logits = runner.head(torch.from_numpy(together[0][-1:]).double(), norm=False)
    again = runner.head(torch.from_numpy(read([texts[0]])[0][-1:]).double(), norm=False)
    assert int(logits.argmax()) == int(again.argmax())
    assert float((logits - again).abs().max()) == pytest.approx(0, abs=1e-4)
