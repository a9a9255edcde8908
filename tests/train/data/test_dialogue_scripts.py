"""A script asks for turns one after the other, and what it makes depends on its number alone."""

import pytest

from draftwood.models.loading.load import Loaded
from draftwood.train.data.chat_turns import Turns, key_of
from draftwood.train.data.dataset_folder import Outcome
from draftwood.train.data.dialogue_scripts import Plan, Reply, Scripts
from draftwood.train.data.mixture import MIX
from draftwood.train.data.passages import Texts
from draftwood.train.data.prompts import CHAT, Prompts

TALK = (
    "This is what the target says about the town of Ulm. It says it at some length, so that others can be made from it.\n\n"
    "The town is known for a church that was built in 1377. People come from far away to climb its tower, and when they "
    "are up there they look at the river and at the hills behind it, and then they go home again."
)


@pytest.fixture
def scripts(tiny: Loaded) -> Scripts:
    return Scripts(Turns(tiny.tokenizer, tiny.config.eos_token_ids), Prompts(Texts()), longest=2048, max_tokens=256)


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


@pytest.mark.slow
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
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "extraction")
    asked, outcome = play(scripts, plan)
    assert [line.kind for line in outcome.lines] == [CHAT, "extraction"]
    assert asked[0] == "user: " and TALK.split("\n")[0] in asked[2]


def test_article_is_written_at_length_and_summarised(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "summary" and p.prompt is not None)
    script = scripts.run(plan)
    ask = next(script)
    assert ask.params.max_tokens == 3 * 256 and 0 < ask.params.temperature <= 0.7
    tokens = scripts.turns.tokenizer.encode(TALK + " And this was cut o")
    ask = script.send(Reply(tokens, False))
    prompt = scripts.turns.tokenizer.decode(ask.prompt)
    assert TALK in prompt and "was cut o" not in prompt, "whole sentences of an answer that met its limit"
    assert ask.params.max_tokens == 256


def test_text_that_repeats_itself_is_used_once(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "summary" and p.prompt is not None)
    asked, _ = play(scripts, plan, TALK + "\n\n" + TALK)
    assert asked[1].count("about the town of Ulm") == 1 and "home again." in asked[1]
    asked, outcome = play(scripts, plan, "Yes. " + TALK[:60])
    assert len(asked) == 1 and len(outcome.lines) == 1, "a twin: there is nothing to summarise"


def test_documents_of_the_target_are_asked_about(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "retrieval")
    asked, outcome = play(scripts, plan)
    kinds = [line.kind for line in outcome.lines]
    subjects = kinds.count("question")
    assert kinds[:subjects] == ["question"] * subjects and kinds.count("retrieval") == subjects in (3, 4)
    assert set(kinds) <= {"question", "retrieval", "extraction"}
    for line, prompt in zip(outcome.lines, asked, strict=True):
        if line.kind == "retrieval":
            assert "built in 1377" in prompt and "1" in prompt and "2" in prompt


def test_question_that_the_target_makes_up_is_asked(scripts: Scripts):
    said = TALK + "\n\nWhat do people see from the tower of the church?"
    plans = [p for p in scripts.plan(range(900)) if p.kind == "retrieval"]
    played = [play(scripts, p, said) for p in plans]
    found = [(asked, [line.kind for line in outcome.lines]) for asked, outcome in played]
    found = [(asked, kinds) for asked, kinds in found if "extraction" in kinds]
    assert found
    for asked, kinds in found:
        after = asked[kinds.index("extraction") + 1]
        assert "What do people see from the tower of the church?" in after


def test_duplicate_ends_a_script_wherever_it_is_noticed(scripts: Scripts):
    """Now, or when all is done: what is kept is the same."""
    plan = next(p for p in scripts.plan(range(500)) if p.kind == "retrieval")
    _, whole = play(scripts, plan)
    scripts.seen = {whole.lines[1].key}
    _, early = play(scripts, scripts.plan([plan.number])[0])
    assert [line.key for line in early.lines] == [whole.lines[0].key] and early.dropped == ["duplicate"]


def test_translation_goes_back_only_from_the_language_it_was_asked_for(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(3000)) if p.kind == "translation" and p.prompt and p.prompt.language)
    english, _ = play(scripts, plan)
    assert len(english) == 1
    words = {
        "German": "Das ist der Mann, der nicht mit dem Zug auf die Insel fährt und sich auch ein Haus kauft.",
        "French": "Les enfants sont dans la rue avec une dame qui est venue pour les voir.",
        "Spanish": "Los niños están en la calle con una mujer que vino para ver las casas del pueblo.",
        "Italian": "Il bambino che non gioca è nel giardino con la madre di una amica per vedere il cane.",
        "Portuguese": "O menino não está em casa com os pais, mas a mãe do amigo também veio para uma festa.",
        "Dutch": "Het kind is niet met een vriend naar de stad, en dat is voor deze man ook van belang.",
    }
    plans = [p for p in scripts.plan(range(6000)) if p.kind == "translation" and p.prompt and p.prompt.language]
    back = [play(scripts, p, words[p.prompt.language])[0] for p in plans if p.prompt]
    assert 0.6 < sum(len(asked) == 2 for asked in back) / len(back) < 0.95
    assert all("English" in asked[1] or "I received" in asked[1] for asked in back if len(asked) == 2)


def test_known_turn_is_not_answered_again(scripts: Scripts):
    scripts.seen = {key_of(TALK)}
    plan = next(p for p in scripts.plan(range(500)) if p.kind == CHAT)
    asked, outcome = play(scripts, plan)
    assert len(asked) == 1 and outcome.dropped == ["duplicate"] and not outcome.lines


def test_turn_that_does_not_end_is_dropped(scripts: Scripts):
    plan = next(p for p in scripts.plan(range(500)) if p.kind == CHAT)
    script = scripts.run(plan)
    next(script)
    with pytest.raises(StopIteration) as end:
        script.send(Reply([1, 2, 3], False))
    assert end.value.value.dropped == ["unended turn"]


def test_requests_of_a_number_are_its_own(scripts: Scripts):
    def seeds(number: int) -> list[int | None]:
        script = scripts.run(scripts.plan([number])[0])
        return [next(script).params.seed, script.send(Reply([65, 66, 257], True)).params.seed]

    chats = [p.number for p in scripts.plan(range(60)) if p.prompt is None]
    found = [tuple(seeds(n)) for n in chats]
    assert found == [tuple(seeds(n)) for n in chats] and len({s for pair in found for s in pair}) == 2 * len(chats)
