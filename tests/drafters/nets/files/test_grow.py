"""A larger net that begins as a smaller head guesses what the smaller one guesses."""

from typing import Any

import pytest
import torch

from draftwood.core.forward import FINAL
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.unrolling.unrolled import Unrolled
from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.grow import grown, grows
from draftwood.drafters.nets.files.store import Head
from draftwood.recipes import eagle, eagle3, griffin, koala, medusa
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.train.loop.teacher import Teacher
from tiny_heads import KEEP

TARGET = tiny_runner(dtype=torch.float32)
LARGER: dict[str, tuple[str, TrainPlan]] = {
    "griffin": ("eagle", griffin.training(TARGET, KEEP)),
    "eagle of 3 layers": ("eagle", koala.training(TARGET, KEEP, layers=3)),
    "eagle of 2 layers, deeper": ("deep_eagle", koala.training(TARGET, KEEP, layers=3)),
    "medusa of 3 blocks": ("medusa", koala.training(TARGET, KEEP, flavour="medusa", layers=3, stages=3)),
    "medusa of 2 blocks, deeper": ("deep_medusa", koala.training(TARGET, KEEP, flavour="medusa", layers=3, stages=3)),
}


def guesses(net: Any, head: Head) -> list[torch.Tensor]:
    """What the LM head reads, for a text."""
    ids = torch.randint(CONFIG.vocab_size, (1, 9), generator=torch.Generator().manual_seed(0))
    on = torch.ones_like(ids, dtype=torch.bool)
    shown = Teacher(TARGET).show(ids, on, on, frozenset({FINAL}), 0)
    if "medusa" in head.config.kind:
        return [net.head(k, shown.features[FINAL]) for k in range(3)]
    return [net.read(a) for a in Unrolled(net, KEEP, steps=3).outputs(shown)]


@pytest.mark.parametrize("name", LARGER)
def test_the_larger_net_begins_as_the_smaller_head(name: str) -> None:
    kind, plan = LARGER[name]
    head, net = random_head(kind, TARGET), plan.net
    assert net is not None and grows(head.config, plan.config)
    before = {key: t.clone() for key, t in net.state_dict().items()}
    net.load_state_dict(grown(head, net.state_dict(), plan.config))
    for one, other in zip(guesses(net, head), guesses(filled(head), head), strict=True):
        torch.testing.assert_close(one, other)
    net.load_state_dict(before)
    assert not torch.allclose(guesses(net, head)[0], guesses(filled(head), head)[0]), "a twin"


def test_only_a_smaller_head_of_the_same_family_fits() -> None:
    configs = {name: random_head(name, TARGET).config for name in ("eagle", "eagle3", "medusa", "deep_eagle")}
    griffins, shallow = griffin.training(TARGET, KEEP).config, koala.training(TARGET, KEEP, layers=1).config
    assert [name for name, c in configs.items() if grows(c, griffins)] == ["eagle"]
    assert [name for name, c in configs.items() if grows(c, shallow)] == ["eagle"], "fewer layers than it has"
    for plan in (eagle.training(TARGET, KEEP), eagle3.training(TARGET, KEEP), medusa.training(TARGET, KEEP)):
        assert not any(grows(c, plan.config) for c in configs.values())
