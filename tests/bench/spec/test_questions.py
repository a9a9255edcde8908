from collections import Counter

import pytest

from draftwood.bench.spec.questions import MT_BENCH, SPEC_BENCH, Item, choose, in_turn, make_items, order, spread

METHODS = ["a", "b", "c", "d"]


def made(*categories: str) -> list[Item]:
    return make_items([(f"{c}{categories[:i].count(c)}", c, "?") for i, c in enumerate(categories)])


def test_categories_of_mt_bench_are_one_task_of_spec_bench():
    tasks = {item.category: item.task for item in made(*sorted(SPEC_BENCH))}
    assert {tasks[c] for c in MT_BENCH} == {"dialogue"}
    assert all(tasks[c] == c for c in SPEC_BENCH - MT_BENCH)


@pytest.mark.parametrize("categories", [sorted(MT_BENCH), ["coding", "math", "qa"], [*sorted(SPEC_BENCH), "cooking"]])
def test_another_file_keeps_its_categories(categories: list[str]):
    assert [item.task for item in made(*categories)] == categories


def test_questions_without_a_category_are_one_task():
    assert [item.task for item in made("", "qa", "")] == ["questions", "qa", "questions"]


def test_every_task_gives_as_many_questions_spread_over_it():
    items = made(*(c for c in ("writing", "math", "qa") for _ in range(4)))
    chosen = choose(items, 2)
    assert [i.id for i in chosen] == ["writing0", "math0", "qa0", "writing2", "math2", "qa2"]
    assert sorted(i.id for i in choose(items, None)) == sorted(i.id for i in items)
    assert len(choose(items, 100)) == len(items)


def test_a_number_of_questions_is_shared_by_the_tasks():
    items = made(*(c for c, count in (("qa", 6), ("rag", 1), ("math", 6)) for _ in range(count)))
    assert [i.id for i in in_turn(items, 4)] == ["qa0", "rag0", "math0", "qa3"]
    assert [i.task for i in in_turn(items, 9)].count("rag") == 1 and len(in_turn(items, 9)) == 9
    assert len(in_turn(items, 100)) == 13 and in_turn([], 3) == []


def test_spread_covers_the_list_once():
    assert spread(list(range(10)), 4) == [0, 2, 5, 7]
    assert spread([1, 2], 5) == [1, 2]


def test_each_method_goes_first_equally_often():
    first = Counter(order(METHODS, i)[0] for i in range(40))
    assert first == dict.fromkeys(METHODS, 10)
    assert all(sorted(order(METHODS, i)) == METHODS for i in range(40))


def test_no_method_always_follows_the_same_neighbour():
    before = {turns[i - 1] for n in range(40) for turns in [order(METHODS, n)] for i in range(1, 4) if turns[i] == "a"}
    assert before == {"b", "c", "d"}


def test_the_order_follows_from_the_seed():
    assert [order(METHODS, i, 1) for i in range(8)] == [order(METHODS, i, 1) for i in range(8)]
    assert [order(METHODS, i, 1) for i in range(40)] != [order(METHODS, i, 2) for i in range(40)]
