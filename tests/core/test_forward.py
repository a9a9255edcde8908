"""A pass knows its own numbers on the host, and a changed pass never those of the old one."""

from dataclasses import replace

import torch

from draftwood.core.forward import ALL, ForwardInput, HostInput, LayerPlan, Span
from draftwood.testing.host_reads import HostReads


def test_pass_made_of_lists_gives_them_back_and_a_changed_one_its_own():
    host_input = HostInput(ids=[5, 6], slots=[0, 0], entries=[0, 1], parents=[-1, 0])
    x = ForwardInput.of(host_input, positions=[3, 4], want=[1], device=torch.device("cpu"))
    assert x.to_host() is host_input
    assert (x.ids.tolist(), x.positions.tolist(), x.want.tolist()) == ([5, 6], [3, 4], [1])
    changed = replace(x, ids=torch.tensor([7, 8]))
    assert changed.to_host().ids == [7, 8]
    assert changed.to_host().parents == [-1, 0]


def test_known_tokens_are_the_same_from_spans_and_from_columns():
    #  slot 3: three known tokens, the last with two nodes below it; slot 1: one known token; slot 0: a level of nodes alone
    ids, slots, parents = list(range(8)), [3] * 5 + [1] + [0] * 2, [-1, 0, 1, 2, 2, -1, 4, 4]
    entries, positions = [0, 1, 2, 3, 4, 0, 5, 6], [10, 11, 12, 13, 13, 0, 9, 9]
    columns = torch.tensor([ids, slots, positions, entries, parents])
    spans = (Span(3, 0, 5, 10, 0, 3), Span(1, 5, 6, 0, 0, 1), Span(0, 6, 8, 4, 5, 1))
    told = ForwardInput(*columns.unbind(0), want=torch.arange(8), spans=spans)
    assert told.known() == [(3, 0, 10, 3), (1, 5, 0, 1)]
    looked = ForwardInput(*columns[:, [0, 1, 2, 5]].unbind(0), want=torch.arange(4))
    assert looked.known() == [(3, 0, 10, 3), (1, 3, 0, 1)]


def test_spans_are_enough_and_nothing_is_read():
    zero = torch.zeros(2, dtype=torch.int64)
    told = ForwardInput(zero, zero, zero, zero, zero, want=zero, spans=(Span(0, 0, 2, 0, 0, 2),))
    with HostReads() as reads:
        assert told.known() == [(0, 0, 0, 2)]
    assert reads.total == 0


def test_a_plan_names_its_groups_in_order_and_no_group_crosses_its_ends():
    assert ALL.groups(3) == [range(0, 1), range(1, 2), range(2, 3)]
    plan = LayerPlan(start=1, stop=6, together=(range(4, 8), range(0, 3), range(2, 4), range(1, 1)))
    assert plan.groups(9) == [range(1, 2), range(2, 4), range(4, 6)], "one begins before it, one is cut, one is empty"
    assert LayerPlan(start=2, stop=2).groups(4) == []
