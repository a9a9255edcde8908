"""The compiled index says what its plain twin says, keeps no more nodes than needed, and forgets what is removed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.kernels.cpu.suffix_index import NativeIndex
from draftwood.kernels.suffix_index import DraftRule, PlainIndex
from native_levels import BEST, opened

tokens = st.integers(2, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=9))
events = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), tokens)), max_size=16)
rules = st.builds(
    DraftRule,
    nodes=st.integers(0, 9),
    levels=st.integers(0, 7),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    offset=st.sampled_from([-1.0, 0.0, 1.5]),
    p_min=st.sampled_from([0.0, 0.1, 0.3]),
    tree=st.booleans(),
)


def index(depth: int) -> NativeIndex:
    return NativeIndex(opened(BEST), depth)


def nodes_needed(twin: PlainIndex) -> int:
    """Runs that do not always go on in one and the same way: where edges of the tree end."""
    texts = list(twin.texts.values())
    runs = {tuple(t[i:j]) for t in texts for i in range(len(t)) for j in range(i + 1, min(len(t), i + twin.depth) + 1)}
    next_runs: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for run in runs:
        next_runs.setdefault(run[:-1], []).append(run)
    return sum(all(twin.count(n) != twin.count(run) for n in next_runs.get(run, ())) for run in runs)


@settings(deadline=None, max_examples=150)
@given(happened=events, asked=st.lists(st.tuples(tokens, rules), min_size=1, max_size=4), depth=st.integers(1, 7))
def test_drafts_and_nodes_are_those_of_the_twin(
    happened: list[tuple[int, list[int] | None]], asked: list[tuple[list[int], DraftRule]], depth: int
) -> None:
    native, twin = index(depth), PlainIndex(depth)
    for sequence, new in happened:
        for each in (native, twin):
            each.remove(sequence) if new is None else each.append(sequence, new)
        assert native.sizes()[0] == nodes_needed(twin)
        for context, rule in asked:
            assert native.draft(context, rule) == twin.draft(context, rule)
    for sequence in range(4):
        native.remove(sequence)
    assert native.sizes() == (0, 0, 0), "nodes, texts and tokens of an empty index"


def test_what_two_sequences_share_survives_the_first() -> None:
    native = index(4)
    for sequence in (0, 1):
        native.append(sequence, [1, 2, 3, 4, 5, 6])
    native.append(1, [7])
    native.remove(1)  # whose text the shared edges point into
    assert native.draft([2, 3], DraftRule(9, 9)).tokens == [4, 5]
    native.append(0, [7, 8])
    assert native.draft([6, 7], DraftRule(9, 9)).tokens == [8] and native.count([5, 6, 7, 8]) == 1


def test_memory_stays_bounded_while_sequences_come_and_go() -> None:
    native = index(8)
    most = 0
    for sequence in range(200):
        native.append(sequence, [(sequence * 7 + i * i) % 11 for i in range(50)])
        native.remove(sequence - 4)
        most = max(most, *native.sizes())
    assert most < 4 * 50 * 8, "of nodes, texts and tokens"
    for sequence in range(196, 200):
        native.remove(sequence)
    assert native.sizes() == (0, 0, 0)
