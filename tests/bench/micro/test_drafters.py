"""bench drafters: what is timed is one proposal after each token of a text, the same for every drafter."""

from pathlib import Path
from typing import Any

import pytest

from draftwood.bench.micro.drafters import DRAFTERS, Sources, cut, measure, proposals
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.drafters.retrieval.datastore import Datastore
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.errors import OptionError, StoreError
from small_stores import TOKENIZER, made_store


class Noting(NGram):
    """Notes the texts after which it proposed."""

    def __init__(self, seen: list[list[int]]) -> None:
        super().__init__(n_min=1)
        object.__setattr__(self, "seen", seen)

    def propose(self, state: Any, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        getattr(self, "seen").append(rnd.requests[0].known)  # noqa: B009
        return super().propose(state, rnd, base, limit, policy)


def test_a_proposal_follows_the_prompt_and_each_of_the_next_tokens() -> None:
    seen: list[list[int]] = []
    text = [1, 2, 3, 1, 2, 3, 1]
    found = proposals(Noting(seen), text, 4, 2, 10)
    assert seen == [text[:4], text[:5], text[:6]]
    assert [each.nodes for each in found] == [3, 3, 3] and all(each.clock > 0 <= each.work for each in found)


def test_every_drafter_decodes_the_same_tokens_after_every_context() -> None:
    a, b, text = list[list[int]](), list[list[int]](), list(range(100))
    rows = measure({"a": Noting(a), "b": Noting(b)}, text, [5, 20], vocab_size=100, rounds=3, repeats=2)
    assert sorted(a) == sorted(b)
    assert {(len(known), known[-1]) for known in a} == {
        (context + i, at + 19 + i) for context in (5, 20) for at in (0, 76) for i in range(4)
    }
    assert [(row.drafter, row.context, row.proposals) for row in rows] == [
        ("a", 5, 6), ("b", 5, 6), ("a", 20, 6), ("b", 20, 6),
    ]  # fmt: skip
    assert all(row.drafted == 0 == row.nodes for row in rows), "no token comes twice"


def test_a_text_that_is_too_short_is_refused() -> None:
    assert list(cut([1, 2, 3], 2, 2)) == [[1, 2], [2, 3]] and list(cut([1, 2], 2, 1)) == [[1, 2]]
    with pytest.raises(OptionError, match="the texts have 3 tokens, 4 are needed"):
        list(cut([1, 2, 3], 4, 1))


def test_the_datastore_needs_a_store_of_the_same_tokenizer(tmp_path: Path) -> None:
    path = made_store(tmp_path / "s", [[1, 2, 3]]).path
    assert isinstance(DRAFTERS["datastore"](Sources(path, TOKENIZER)), Datastore)
    with pytest.raises(OptionError, match="needs a store\nhint: --store"):
        DRAFTERS["datastore"](Sources())
    with pytest.raises(StoreError, match="another tokenizer"):
        DRAFTERS["datastore"](Sources(path, "other"))
