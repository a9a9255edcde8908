"""Shares of the kinds of dialogue, and the weights of scripts: some scripts yield dialogues of other kinds too.

summary, extraction     over the target's own text: one chat as well
translation             of the target's own sentence: one chat; answers in another language are mostly translated back
retrieval               over documents of the target: one question each; a question that the target writes is an extraction
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
OWN_SHARE = 0.5  # of the prompts over texts: use texts written by the target, if the user gives texts too
BACK_SHARE = 0.8  # of the answers in another language: are translated back
IN_LANGUAGE = 0.5  # of the answers asked for in another language: are in it; small targets often answer in English
FOREIGN_SHARE = 0.5  # of the translations: foreign sentences made from templates
WRITTEN_SHARE = 0.05  # of the translations: foreign sentences that the target writes
ASKED_SHARE = 0.25  # of the retrieval prompts: the target writes the question
SUBJECTS = (3, 3, 4)  # number of documents that the target writes, drawn; each is asked about once


def script_weights(mix: Mapping[str, float], own_share: float) -> dict[str, float]:
    """Weights of scripts by kind that give this mix of dialogues."""
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
