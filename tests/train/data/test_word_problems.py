"""Word problems: many forms, whole sentences, no empty slot."""

import random
import re

from draftwood.train.data.word_problems import PROBLEMS, problem


def test_problems_are_varied_and_whole():
    found = [problem(random.Random(i)) for i in range(2000)]
    assert len(PROBLEMS) >= 15 and len(set(found)) > 1900
    for text in found:
        assert (text[0].isupper() or text[0].isdigit()) and text[-1] in ".?" and len(re.findall(r"\d+", text)) >= 2
        assert "{" not in text and "  " not in text
