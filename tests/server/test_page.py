"""The playground in a real browser: against scripted answers, and against the server with a tiny model."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devtools import Page, browser_page, installed
from draftwood.models.loading.load import Loaded
from draftwood.server.guard import Limits
from live_server import LiveServer, started
from scripted_answers import Json, answer, rounds_of, token, tokens_of
from scripted_server import Refusal, Script, ScriptedServer, scripted_server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = (
    "The lighthouse keeper lit the lamp at dusk, as he had done every evening for thirty years.\n\nThe sea was calm.\n"
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    program = installed()
    if program is None:
        pytest.skip("no Chromium found")
    with browser_page(program) as page:
        yield page


@contextmanager
def visited(tab: Page, address: str) -> Iterator[None]:
    """The page of a server, ready for the first question; at the end nothing may have gone wrong on it."""
    tab.complaints.clear()
    tab.size(1280, 800)
    tab.prefer(prefers_color_scheme="light")
    tab.open(address)
    tab.wait("document.querySelectorAll('#recipe option').length")
    yield
    assert tab.complaints == []
    tab.open("about:blank")  # so that no connection is left when the server ends


@contextmanager
def opened(tab: Page, script: Script) -> Iterator[ScriptedServer]:
    with scripted_server(script) as server, visited(tab, server.address):
        yield server


def ask(tab: Page, question: str) -> None:
    tab.run("document.querySelector('#question').focus()")
    tab.type(question)
    tab.press("Enter")


def ended(tab: Page) -> None:
    tab.wait("document.querySelector('#stop').hidden && document.querySelector('.answer:last-child .under, .trouble')")


def text_of(tab: Page, selector: str) -> str:
    return tab.run(f"document.querySelector({selector!r}).textContent")


def told(request: Json) -> Iterator[Json | float]:
    return answer(TEXT, speculation=request["speculation"]["enabled"])


def test_every_token_shows_its_source_and_opens_the_tree_of_its_round(tab: Page) -> None:
    with opened(tab, told):
        ask(tab, "Tell me of the sea")
        ended(tab)
        assert text_of(tab, ".text") == TEXT
        sources = (
            "[...document.querySelectorAll('.text .token')].map(t => /slot-(.)/.exec(t.className)?.[1] ?? 'target')"
        )
        rounds = list(rounds_of(tokens_of(TEXT)))
        expected = [source for each in rounds for source in (*[each["sources"][n - 1] for n in each["accepted"]], -1)]
        looks = dict(zip(expected, tab.run(sources), strict=False))  # which look a source has is the page's choice
        assert len(set(looks.values())) == 3 and looks[-1] == "target"
        assert [looks[source] for source in expected] == tab.run(sources)
        assert text_of(tab, "#legend").count("Aa") == 3
        look = "(({textDecorationLine, textDecorationStyle}) => textDecorationLine + textDecorationStyle)"
        styles = f"[...document.querySelectorAll('#legend .look')].map(e => {look}(getComputedStyle(e)))"
        assert len(set(tab.run(styles))) == 3  # told apart without colour too

        deep = next(i for i, each in enumerate(rounds) if each["accepted"] and len(each["texts"]) > 5)
        tab.run(f"[...document.querySelectorAll('.text .token')].find(t => t.round === {deep}).id = 'chosen'")
        tab.click("#chosen")
        drawn = tab.run("[...document.querySelectorAll('.tree .node')].map(n => n.getAttribute('class').split(' ')[1])")
        path, nodes = rounds[deep]["accepted"], rounds[deep]["texts"]
        assert sorted(drawn) == sorted(
            ["root", "target", *["accepted"] * len(path), *["rejected"] * (len(nodes) - len(path))]
        )
        assert f"{len(nodes)} tokens drafted, {len(path)} accepted" in text_of(tab, ".sentence")
        assert "ms" in text_of(tab, ".costs")
        assert text_of(tab, ".tree .target .word") == rounds[deep]["emitted"][-1].replace(" ", "·")


def test_keys_send_walk_the_rounds_and_close_the_tree(tab: Page) -> None:
    with opened(tab, told) as server:
        tab.run("document.querySelector('#question').focus()")
        tab.type("one line")
        tab.press("Enter", shift=True)
        tab.type("another")
        tab.press("Enter")
        ended(tab)
        assert server.asked[0]["messages"] == [{"role": "user", "content": "one line\nanother"}]
        tab.run("document.querySelector('.text').focus()")
        tab.press("ArrowRight")
        assert text_of(tab, "#round-title").startswith("Round 1 of ")
        tab.press("ArrowRight")
        tab.press("ArrowRight")
        assert text_of(tab, "#round-title").startswith("Round 3 of ")
        assert tab.run("new Set([...document.querySelectorAll('.chosen.token')].map(t => t.round)).size") == 1
        tab.press("Escape")
        assert not tab.run("document.querySelector('#round').classList.contains('open')")
        assert tab.run("document.activeElement === document.querySelector('.text')")


def test_the_next_message_has_the_recipe_and_the_sampling_of_now(tab: Page) -> None:
    with opened(tab, told) as server:
        ask(tab, "first")
        ended(tab)
        tab.click("#options")
        for name, value in {
            "temperature": "0.7",
            "top_p": "0.9",
            "max_tokens": "50",
            "seed": "7",
            "depth": "3",
        }.items():
            tab.run(f"document.querySelector('#sampling [name={name}]').value = {value!r}")
        choose_recipe(tab, "medusa")
        assert tab.run("document.querySelector('#lossy').checkVisibility()")
        ask(tab, "second")
        tab.wait("document.querySelectorAll('.under').length === 2")
        first, second = server.asked
        shown = {"provenance": True, "rounds": True}
        assert first["temperature"] == 0 and first["speculation"] == {"enabled": True, "recipe": "auto", **shown}
        assert second["speculation"] == {"enabled": True, "recipe": "medusa", "depth": 3, **shown}
        assert (second["temperature"], second["top_p"], second["max_tokens"], second["seed"]) == (0.7, 0.9, 50, 7)
        assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
        assert "lossy" in text_of(tab, ".answer:last-child .under") and "seed 7" in text_of(
            tab, ".answer:last-child .under"
        )
        assert "lossy" not in text_of(tab, ".answer .under")


def test_plain_decoding_is_measured_with_the_same_request(tab: Page) -> None:
    with opened(
        tab, lambda request: answer(TEXT, pause=0.005, speculation=request["speculation"]["enabled"])
    ) as server:
        ask(tab, "How fast is this?")
        ended(tab)
        assert "plain 135, measured at the start" in text_of(tab, "#chart")
        tab.click("#measure")
        tab.wait("document.querySelector('.compared')")
        ours, plain = server.asked
        assert plain["speculation"]["enabled"] is False and plain["messages"] == ours["messages"]
        assert "Both texts are the same" in text_of(tab, ".compared")
        assert "measured with this question" in text_of(tab, "#chart")


def test_stop_ends_the_request_and_keeps_what_came(tab: Page) -> None:
    with opened(tab, lambda request: answer(TEXT * 200, pause=0.01)) as server:
        ask(tab, "Do not stop")
        tab.wait("document.querySelectorAll('.text .token').length > 9")
        tab.click("#stop")
        ended(tab)
        assert "stopped" in text_of(tab, ".under") and (TEXT * 200).startswith(text_of(tab, ".text"))
        tab.wait("true")
        for _ in range(200):
            if server.left:
                break
            tab.run("new Promise(done => setTimeout(done, 20))")
        assert server.left == [0]


HOSTILE = '<img src=x onerror="document.title=`taken`"><script>document.title = "taken"</script> & <b>bold</b>'


def hostile(request: Json) -> Iterator[Json | float]:
    tree = {"texts": [HOSTILE], "parents": [0], "sources": [0], "accepted": [1], "probability": [0.5]}
    one = next(rounds_of(["a", "b"])) | tree | {"emitted": [HOSTILE, HOSTILE]}
    told = [token(HOSTILE, 0, 0, HOSTILE), token(HOSTILE, -1, 0)]
    yield {"choices": [{"delta": {"content": HOSTILE * 2}, "provenance": told}], "rounds": [one]}


def test_what_a_model_writes_stays_text(tab: Page) -> None:
    with opened(tab, hostile):
        ask(tab, HOSTILE)
        ended(tab)
        tab.click(".text .token")
        assert text_of(tab, ".text") == HOSTILE * 2
        assert tab.run("document.title") == "draftwood playground"
        assert tab.run("document.querySelectorAll('img, body script, #log b b, .tree b, #legend b').length") == 0


def test_markup_would_be_found_and_stopped_by_the_policy(tab: Page) -> None:
    with opened(tab, hostile):
        tab.run(f"document.querySelector('#log').insertAdjacentHTML('beforeend', {HOSTILE!r})")
        tab.wait("document.querySelectorAll('#log img').length")
        assert tab.run("document.title") == "draftwood playground"
        assert any("Content Security Policy" in each for each in tab.complaints)
        tab.complaints.clear()


def refusing(request: Json) -> Iterator[Json | float]:
    if len(request["messages"]) == 1 and "again" not in request["messages"][0]["content"]:
        raise Refusal("temperature is -1\nhint: 0 or more")
    broken = {"error": {"message": "the engine stopped", "type": "server_error"}}
    return iter([{"choices": [{"delta": {"content": "half"}}]}, broken])


def test_errors_say_what_and_why_and_can_be_tried_again(tab: Page) -> None:
    with opened(tab, refusing) as server:
        ask(tab, "wrong")
        ended(tab)
        assert "temperature is -1" in text_of(tab, ".trouble") and "0 or more" in text_of(tab, ".trouble .hint")
        tab.click(".trouble .button")
        tab.wait("document.querySelector('.trouble') && !document.querySelector('#stop:not([hidden])')")
        assert len(server.asked) == 2 and tab.run("document.querySelectorAll('.answer').length") == 1
        tab.click("#clear")
        assert tab.run("document.querySelector('#welcome').checkVisibility() && !document.querySelector('.answer')")
        ask(tab, "again")
        ended(tab)
        assert "the engine stopped" in text_of(tab, ".trouble") and text_of(tab, ".text") == "half"
        tab.complaints[:] = [
            each for each in tab.complaints if "400" not in each
        ]  # the browser's own line on the refusal


def test_ten_thousand_tokens_stay_usable_and_old_rounds_go(tab: Page) -> None:
    """One paragraph, which is laid out as a whole, and many."""
    words = " ".join(f"w{i}" for i in range(5000))
    long = words + "\n" + words.replace(" w", "\nw")

    with opened(tab, lambda request: answer(long)):
        ask(tab, "Write a book")
        tab.wait("document.querySelectorAll('.text .token').length > 2000")
        tab.run("document.querySelector('#question').focus()")
        tab.type("typed meanwhile")
        ended(tab)
        assert tab.run("document.querySelector('#question').value") == "typed meanwhile"
        tokens = len(tokens_of(long))
        assert tokens >= 10_000 and tab.run("document.querySelectorAll('.text .token').length") == tokens
        assert text_of(tab, ".text") == long
        assert tab.run("document.querySelectorAll('.text .block').length") > 50
        tab.run("document.querySelector('.text').focus()")
        tab.press("Home")
        assert "no longer kept: the page keeps the newest 2,000" in text_of(tab, "#round-body")
        tab.press("End")
        assert "emitted" in text_of(tab, "#round-body")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes_and_at_360_pixels(tab: Page, scheme: str) -> None:
    with opened(tab, told):
        tab.prefer(prefers_color_scheme=scheme)
        tab.size(360, 740)
        ask(tab, "Tell me of the sea")
        ended(tab)
        tab.click(".text .token:nth-child(3)")
        for shown in (scheme, "light", "dark"):  # the button goes from the system's theme to these
            assert tab.run(f"{CONTRAST}('.text .source')") >= 4.5 and tab.run(f"{CONTRAST}('.sentence')") >= 4.5
            assert tab.run("brightness(getComputedStyle(document.body).backgroundColor) < 0.2") == (shown == "dark")
            assert tab.run("document.documentElement.scrollWidth <= innerWidth && innerWidth === 360")
            tab.run("document.querySelector('#theme').click()")


# Of the text against what lies behind it, as WCAG 2 defines it; colours are painted, which mixes them as the screen does.
CONTRAST = """
(globalThis.painted = (...colors) => {
  const context = new OffscreenCanvas(1, 1).getContext('2d');
  for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
  return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255);
},
globalThis.brightness = (...colors) => {
  const [r, g, b] = painted(...colors).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
},
(selector) => {
  const found = document.querySelector(selector);
  const behind = [];
  for (let node = found; node; node = node.parentElement) behind.unshift(getComputedStyle(node).backgroundColor);
  const both = [brightness(...behind), brightness(...behind, getComputedStyle(found).color)];
  return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
})"""


def choose_recipe(tab: Page, name: str) -> None:
    tab.run(f"document.querySelector('#recipe').value = {name!r}")
    tab.run("document.querySelector('#recipe').dispatchEvent(new Event('input', {bubbles: true}))")


def test_a_chat_with_the_real_server(tab: Page, loaded: Loaded) -> None:
    with (
        started(loaded, recipes=("prompt_lookup", "prompt_lookup:n_min=1:depth=3")) as server,
        visited(tab, server.url),
    ):
        with server.client() as client:
            told = client.get("/draftwood/info").json()
        assert told["model"] in text_of(tab, "#facts") and told["backend"] in text_of(tab, "#facts")
        assert tab.run("[...document.querySelector('#recipe').options].map(o => o.value)") == told["recipes"]
        for number, recipe in enumerate(told["recipes"][:2], 1):
            choose_recipe(tab, recipe)
            ask(tab, "abc abc abc abc")
            tab.wait(f"document.querySelectorAll('.under').length === {number}")
            answer = f".answer[aria-label='Answer {number}']"
            assert recipe in text_of(tab, f"{answer} .under")
            drafted = f"[...document.querySelectorAll(`{answer} .token.source`)]"
            tab.wait(f"{drafted}.length")
            # What the tokens say of themselves is what the tree of their round says.
            tab.run(f"{drafted}[0].id = 'token-{number}'")
            tab.click(f"#token-{number}")
            accepted = tab.run("[...document.querySelectorAll('.tree .accepted .word')].map(word => word.textContent)")
            chosen = "[...document.querySelectorAll('.token.chosen')]"
            assert accepted and len(accepted) == tab.run(f"{chosen}.filter(t => t.matches('.source')).length")
            assert len(accepted) <= tab.run(f"{chosen}.length") <= len(accepted) + 1
            tab.press("Escape")
        tab.click("#measure")
        tab.wait("document.querySelector('.compared, .trouble')")
        assert "Both texts are the same" in text_of(tab, ".compared")


def test_stopping_frees_the_place_on_the_real_server(tab: Page, server: LiveServer) -> None:
    with visited(tab, server.url):
        tab.run("document.querySelector('#sampling [name=max_tokens]').value = 900")
        # Pressed from inside the page, at the first token: the answer takes half a second.
        first = "document.querySelector('.text .token') && document.querySelector('#stop')"
        tab.run(f"void setInterval(() => ({first})?.click(), 5)")
        ask(tab, "abc abc")
        ended(tab)
        assert "stopped" in text_of(tab, ".under") and server.idle()


def test_a_key_is_asked_for_and_used(tab: Page, loaded: Loaded) -> None:
    with started(loaded, limits=Limits(keys={"me": "secret"})) as server:
        tab.complaints.clear()
        tab.open(server.url)
        tab.wait("document.querySelector('.key input')")
        tab.type("secret")
        tab.press("Enter")
        tab.wait("document.querySelectorAll('#recipe option').length")
        ask(tab, "abc")
        ended(tab)
        assert text_of(tab, ".text")
        assert [each for each in tab.complaints if "401" not in each] == []
        tab.open("about:blank")
