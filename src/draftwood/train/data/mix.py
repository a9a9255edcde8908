"""How many dialogues of each kind, and how many numbers that takes: some numbers bring dialogues of other kinds along.

summary, extraction     over the target's own text: one chat, too
translation             of its own sentence: one chat; what is in another language mostly has a way back
retrieval               over documents it wrote: a question for each; a question it made up is an extraction
"""

from collections.abc import Mapping

from draftwood.train.data.prompts import CHAT, MADE

MIX = {
    CHAT: 0.26,
    "question": 0.16,
    "math": 0.10,
    "summary": 0.13,
    "extraction": 0.08,
    "retrieval": 0.11,
    "translation": 0.11,
    "code": 0.05,
}
assert set(MIX) == {CHAT, *MADE}
OWN_SHARE = 0.5  # of what is made over texts: over the target's own, where there are others
BACK_SHARE = 0.8  # of what the target wrote in another language: translated back
IN_LANGUAGE = 0.5  # of what was to be in another language is in it; small targets often answer in English
FOREIGN_SHARE, WRITTEN_SHARE = (
    0.5,
    0.05,
)  # of translations: sentences by rule; sentences the target writes in that language
ASKED_SHARE = 0.25  # of retrieval: the target makes up the question
SUBJECTS = (3, 3, 4)  # the target writes about, each of which is asked for once


def numbers(mix: Mapping[str, float], own_share: float) -> dict[str, float]:
    """Weights of numbers by kind for a mix of dialogues."""
    found = {kind: mix.get(kind, 0.0) for kind in (CHAT, *MADE)}
    sentences = 1 - FOREIGN_SHARE - WRITTEN_SHARE
    subjects = sum(SUBJECTS) / len(SUBJECTS)
    found["translation"] /= FOREIGN_SHARE + (1 + IN_LANGUAGE * BACK_SHARE) * (1 - FOREIGN_SHARE)
    found["retrieval"] /= 1 - own_share + own_share * subjects
    found["extraction"] -= ASKED_SHARE * mix.get("retrieval", 0.0)
    found["question"] -= own_share * subjects * found["retrieval"]
    found = {kind: max(0.0, weight) for kind, weight in found.items()}
    found[CHAT] -= own_share * (found["summary"] + found["extraction"] + sentences * found["translation"])
    return {kind: max(0.0, weight) for kind, weight in found.items() if mix.get(kind)}
