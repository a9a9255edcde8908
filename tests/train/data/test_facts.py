"""Short questions fit their subject, in many forms, some as people type them into a search box."""

import random

from draftwood.train.data.facts import ASKED, LISTS, fact_question, subject


def test_every_kind_of_subject_has_questions():
    assert set(ASKED) == set(LISTS)
    for kind, questions in ASKED.items():
        assert all("{x}" in q and q.endswith("?") for q in questions) and len(set(questions)) == len(questions) >= 7
        assert len(set(LISTS[kind])) == len(LISTS[kind]) >= 14


def test_questions_are_varied_and_whole():
    found = [fact_question(random.Random(i)) for i in range(2000)]
    assert len(set(found)) > 1700 and not any("{" in q or "  " in q for q in found)
    typed = [q for q in found if not q[0].isupper()]
    assert 0.3 < len(typed) / len(found) < 0.5 and not any("?" in q for q in typed)
    assert all("?" in q for q in found if q[0].isupper())


def test_subjects_can_be_written_about():
    found = {subject(random.Random(i)) for i in range(2000)}
    assert len(found) > 250 and "the hedgehog" in found and "Norway" in found
