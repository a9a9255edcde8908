"""The table of host reads names every rule, and rules judge alike whether they look or not."""

from typing import Any

import pytest

from both_paths import drafted, same, world
from draftwood.bench.micro.host_reads import Reads, counted, reads_by_rule, stated
from draftwood.bench.micro.verifiers import DRAFTS, legal
from draftwood.bench.study.rules.known_distributions import known_rules

BUILT_IN: dict[str, Any] = {name: rule for name, rule in known_rules().items() if rule is not None}


def test_every_rule_has_a_row_for_each_batch_and_two_never_read() -> None:
    rows = reads_by_rule()
    assert [(row.rule, row.batch) for row in rows] == [(name, batch) for name in BUILT_IN for batch in (1, 8)]
    silent = {row.rule for row in rows if row.reads == 0}
    assert silent >= {"Match", "Rejection"}
    assert all(isinstance(row, Reads) for row in rows)


def test_control_a_rule_that_reads_is_counted() -> None:
    class Looks:
        def verify(self, proposal: Any, target: Any, rnd: Any) -> Any:
            proposal.tree.tokens.tolist()
            return BUILT_IN["Match"].verify(proposal, target, rnd)

    rule: Any = Looks()
    assert counted(world(), rule, drafted(0, 1).proposal)[1] == 1


def test_a_bound_is_what_the_tree_has() -> None:
    made = stated(drafted(3, 2).proposal)
    assert (made.levels, made.siblings) == (63, 1), "a chain"


@pytest.mark.parametrize(
    ("rule", "draft"),
    [(name, i) for name in BUILT_IN for i, draft in enumerate(DRAFTS) if legal(name, draft)],
    ids=lambda x: x if isinstance(x, str) else DRAFTS[x].name,
)
def test_a_rule_gives_the_same_verdict_on_the_host_path_and_the_device_path(rule: str, draft: int) -> None:
    here = drafted(draft, 8)
    for options in ([{}], [{"top_p": 0.8}]):
        found, _ = here.on_device(BUILT_IN[rule], options)
        assert same(found.to_host(), here.on_host(BUILT_IN[rule], options))
