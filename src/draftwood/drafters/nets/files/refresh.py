"""New weights for a head that is already open: checked as a whole first, so that a wrong mapping changes nothing."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from draftwood.errors import WeightsError


def check(weights: Mapping[str, Tensor], have: Mapping[str, Tensor]) -> None:
    """WeightsError names a tensor that the head does not have, that has another shape, or that holds no numbers."""
    extra = sorted(set(weights) - set(have))
    if extra:
        raise WeightsError(f"this head has no {extra}\nhint: its tensors are {sorted(have)}")
    for name, t in weights.items():
        if t.shape != have[name].shape:
            raise WeightsError(f"{name} is {list(t.shape)}, this head has {list(have[name].shape)}")
        if not bool(torch.isfinite(t).all()):
            raise WeightsError(f"{name} holds something that is no number\nhint: a smaller learning rate")


def refresh_net(net: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copied in place: every runner of the net, and every graph captured over its addresses, uses them from now on."""
    # In inference mode, because a net that was built in it can be written nowhere else; other nets can be written there too.
    with torch.inference_mode():
        have = net.state_dict()
        check(weights, have)
        for name, t in weights.items():
            have[name].copy_(t.detach())
