"""Documents are numbered, the right one is among them, and the question is about it."""

import random
import re

from draftwood.train.data.passages import Passage
from draftwood.train.data.retrieval_prompts import PLENTY, Document, drawn, question_in, search, shown, written

PASSAGES = [Passage(f"The mill of Number{i} was built by Emil{i} in {1700 + i}. " * (1 + i % 4)) for i in range(80)]
DOCUMENTS = [Document(f"Town number {i} is the home of a painter called Berg{i}.", f"town {i}") for i in range(9)]


def test_drawn_documents_are_together_as_long_as_was_asked_for():
    for i in range(100):
        found = drawn(random.Random(i), PASSAGES, 700)
        assert 2 <= len(found) <= PLENTY and sum(len(d.text) for d in found) <= 1.21 * 700
        assert len({d.text for d in found}) == len(found)
    assert drawn(random.Random(0), [], 700) == []


def test_right_document_is_always_there_and_every_one_is_numbered():
    places = set()
    for i in range(300):
        turn = shown(random.Random(i), DOCUMENTS, 4, "Where does Berg4 live?")
        assert DOCUMENTS[4].text in turn and "Where does Berg4 live?" in turn and "{" not in turn
        inside = sorted((turn.index(d.text), d.text) for d in DOCUMENTS if d.text in turn)
        assert len(inside) == PLENTY
        places.add([text for _, text in inside].index(DOCUMENTS[4].text))
        before = [turn[:at].splitlines()[-2:] for at, _ in inside]
        assert all(re.search(rf"\b{n}\b", " ".join(lines)) for n, lines in enumerate(before, 1)), turn
    assert places == set(range(PLENTY)), "anywhere among them"


def test_question_by_rule_is_about_the_document():
    right = Document(
        "Tea is a drink made from dried leaves. It reached Europe in 1610, brought by Dutch Traders.", "tea"
    )
    asked = {search(random.Random(i), right) for i in range(300)}
    assert "What is a drink made from dried leaves?" in asked and "What happened in 1610?" in asked
    assert len(asked) > 15 and all(re.search("tea|drink|1610|Europe|Dutch", q) for q in asked), asked
    bare = {search(random.Random(i), Document("so it goes")) for i in range(50)}
    assert bare and not any("{" in q for q in bare)


def test_text_of_the_target_becomes_paragraphs_of_whole_sentences():
    long = "This paragraph is long enough to stand alone, because it goes on and on about one thing. " * 3
    found = written(f"Short.\n\n{long}\n\n{long}\n\nEnd.\n\nAnd this was cut", "tea")
    assert [d.title for d in found] == ["tea"] * 2
    assert found[0].text.startswith("Short. This") and found[-1].text.endswith("End.")
    assert written("no sentence") == []


def test_question_is_found_in_what_the_target_says():
    assert question_in("Sure!\n\nWhat is the main use of salt in the kitchen?\nIt is") == (
        "What is the main use of salt in the kitchen?"
    )
    for said in ("There is none.", "Why?", "What, me?", "What is it that you would like to know?", ""):
        assert question_in(said) is None


def test_document_with_one_name_is_asked_about_all_the_same():
    right = Document("People say that Paris has many old bridges over its river.", "Paris")
    assert all(search(random.Random(seed), right).strip() for seed in range(50))
