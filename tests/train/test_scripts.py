"""A script asks for turns one after the other, and what it makes depends on its number alone."""

import pytest

from draftwood.models.load import Loaded
from draftwood.train.folder import Outcome
from draftwood.train.prompts import CHAT, OVER_TEXT, Prompts
from draftwood.train.scripts import MIX, Plan, Reply, Scripts
from draftwood.train.texts import Texts
from draftwood.train.turns import Turns, key_of

TALK = "This is what the target says. It says it at some length, so that others can be made from it."


@pytest.fixture
def scripts(tiny: Loaded) -> Scripts:
    return Scripts(Turns(tiny.tokenizer, tiny.config.eos_tokens), Prompts(Texts()), longest=2048, max_tokens=256)


def play(scripts: Scripts, plan: Plan, said: str = TALK) -> tuple[list[str], Outcome]:
    """A script with a target that always says the same; what it was asked, and what came of it."""
    tokens = [*scripts.turns.tokenizer.encode(said), 257]
    asked: list[str] = []
    script = scripts.run(plan)
    try:
        ask = next(script)
        while True:
            asked.append(scripts.turns.tokenizer.decode(ask.prompt))
            ask = script.send(Reply(tokens, True))
    except StopIteration as end:
        return asked, end.value


def test_mix_is_met_without_texts_too(scripts: Scripts):
    made = [line.kind for plan in scripts.plan(range(1500)) for line in play(scripts, plan)[1].lines]
    for kind, share in MIX.items():
        count = sum(k == kind or (kind == CHAT and k == "followup") for k in made)
        assert abs(count / len(made) - share) < 0.04, kind


def test_some_chats_go_on(scripts: Scripts):
    outcomes = [play(scripts, plan)[1] for plan in scripts.plan(range(600)) if plan.kind == CHAT]
    long = [line for o in outcomes for line in o.lines if line.kind == "followup"]
    assert 0.05 < len(long) / len(outcomes) < 0.3
    for line in long:
        text = scripts.turns.tokenizer.decode(line.tokens)
        assert (text == f"user: {TALK}\nassistant: {TALK}\n" * 2 and len(line.answers) == 2) or text.count(TALK) == 4
        words = [scripts.turns.tokenizer.decode(line.tokens[a:b]) for a, b in line.answers]
        assert words == [TALK, TALK]


def test_own_text_gives_a_chat_and_a_dialogue_about_it(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "summary")
    asked, outcome = play(scripts, plan)
    assert [line.kind for line in outcome.lines] == [CHAT, "summary"] and plan.kind in OVER_TEXT
    assert asked[0] == "user: " and TALK in asked[2]


def test_known_turn_is_not_answered_again(scripts: Scripts):
    scripts.seen = {key_of(TALK)}
    plan = next(p for p in scripts.plan(range(500)) if p.kind == CHAT)
    asked, outcome = play(scripts, plan)
    assert len(asked) == 1 and outcome.dropped == ("duplicate",) and not outcome.lines


def test_turn_that_does_not_end_is_dropped(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == CHAT)
    script = scripts.run(plan)
    next(script)
    with pytest.raises(StopIteration) as end:
        script.send(Reply([1, 2, 3], False))
    assert end.value.value.dropped == ("unended turn",)


def test_requests_of_a_number_are_its_own(scripts: Scripts):
    def seeds(number: int) -> list[int]:
        script = scripts.run(scripts.plan([number])[0])
        return [next(script).params.seed, script.send(Reply([65, 66, 257], True)).params.seed]

    chats = [p.number for p in scripts.plan(range(60)) if p.prompt is None]
    found = [tuple(seeds(n)) for n in chats]
    assert found == [tuple(seeds(n)) for n in chats] and len({s for pair in found for s in pair}) == 2 * len(chats)
