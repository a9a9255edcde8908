"""A pass knows its own numbers on the host, and a changed pass never those of the old one."""

from dataclasses import replace

import torch

from draftwood.core.forward import ForwardInput, HostInput


def test_pass_made_of_lists_gives_them_back_and_a_changed_one_its_own():
    host_input = HostInput(ids=[5, 6], slots=[0, 0], entries=[0, 1], parents=[-1, 0])
    x = ForwardInput.of(host_input, positions=[3, 4], want=[1], device=torch.device("cpu"))
    assert x.to_host() is host_input
    assert (x.ids.tolist(), x.positions.tolist(), x.want.tolist()) == ([5, 6], [3, 4], [1])
    changed = replace(x, ids=torch.tensor([7, 8]))
    assert changed.to_host().ids == [7, 8]
    assert changed.to_host().parents == [-1, 0]
