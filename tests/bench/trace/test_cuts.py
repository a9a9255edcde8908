"""Cut trees are the trees that a smaller budget would have drafted at the same place, and accept what the text says."""

from dataclasses import replace

import pytest

from draftwood.bench.trace.costs import fitted
from draftwood.bench.trace.cuts import Cut, cut_of, cut_rounds, cut_trees
from draftwood.bench.trace.summary import counted, measured
from draftwood.core.host import put
from draftwood.core.limit import Limit
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import OptionError, TraceError
from recorded_runs import V, totals, traced


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_cut_tree_is_what_the_drafter_proposes_with_so_many_nodes(nodes):
    _, trace = traced("prompt_lookup")
    compared = 0
    for rnd, whole in zip(cut_rounds(trace, Cut(nodes=nodes)), trace.rounds, strict=True):
        for each, old in zip(rnd.sequences, whole.sequences, strict=True):
            if len(old.tokens) <= nodes:
                assert each == old
                continue
            whole_text, asked = trace.requests[each.request].text, trace.requests[each.request].asked
            text, left = whole_text[: each.length], len(asked.prompt) + 24 - each.length
            request = Request(0, text, SamplingParams(), V)
            made, drafter = Round(put([0], "cpu"), put([len(text)], "cpu"), (request,)), NGram()
            (found,) = drafter.retrieve(drafter.init(1), made, Limit.of([min(10, left - 1)], [nodes]))
            assert (found.tokens, found.parents) == (each.tokens, each.parents)
            compared += 1
    assert compared > 5


def test_a_cut_that_cuts_nothing_gives_the_recorded_figures():
    requests, trace = traced("prompt_lookup")
    assert counted(cut_rounds(trace, Cut(nodes=99, depth=99))) == totals(requests)


def test_smaller_trees_accept_less_and_no_tree_is_plain_decoding():
    _, trace = traced("prompt_lookup")
    costs = fitted(trace.rounds)
    sizes = [cut_trees(trace, Cut(nodes=n), costs).tokens_per_pass for n in (0, 1, 2, 4, 99)]
    assert sizes == sorted(sizes) and sizes[0] == 1.0
    assert sizes[-1] == measured("x", trace.rounds).tokens_per_pass
    assert cut_trees(trace, Cut(depth=0), costs).tokens_per_pass == 1.0
    assert cut_trees(trace, Cut(nodes=1), costs).tokens == trace.num_tokens


def test_other_rules_are_refused():
    _, trace = traced("prompt_lookup")
    trace.header = replace(trace.header, rule="Rejection")
    with pytest.raises(TraceError, match="trees cannot be cut: Rejection"):
        cut_rounds(trace, Cut(nodes=1))


def test_sizes_are_spelt_as_options_are():
    assert cut_of("nodes=4:depth=2") == Cut(4, 2)
    assert str(cut_of("depth=2")) == "depth=2"
    for text in ("nodes", "nodes=x", "beam=2", "nodes=-1", ""):
        with pytest.raises(OptionError, match="--cut"):
            cut_of(text)
