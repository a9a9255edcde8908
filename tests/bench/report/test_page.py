"""A report is whole, escapes all text and asks nobody for anything."""

import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from chromium import chromium
from draftwood.bench.report.markup import Markup, element
from draftwood.bench.report.page import page, report, write_report
from measured_log import HOSTILE, MIXED, SPEEDS, measured_log

HEADINGS = ["Summary", "Tokens per second", "Acceptance by depth", "Time by part", "Losing cases", "Provenance"]


class Elements(HTMLParser):
    """Elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.said += data


@pytest.fixture
def made(tmp_path: Path) -> str:
    return report(*measured_log(tmp_path / "r.jsonl"))


def test_a_report_has_its_plots_tables_and_provenance(made: str):
    found = Elements(made)
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", made) == HEADINGS
    plots = [attributes for tag, attributes in found.elements if tag == "svg" and attributes.get("role") == "img"]
    assert len(plots) == 3 + 1 + 1 + 2  # overall and two tasks; acceptance; time; two lost questions
    assert all(plot["aria-label"] for plot in plots)
    places = {attributes.get("id") for _, attributes in found.elements}
    assert {a["href"] for tag, a in found.elements if tag == "a"} <= {f"#{place}" for place in places}
    assert "abc1234" in found.said and "0.10 on average, 0.20 at most" in found.said
    assert "question.jsonl" in found.said and "a <b>processor</b>" in found.said


def test_the_losing_questions_are_shown_with_both_times_and_where_the_time_went(made: str):
    said = Elements(made).said
    assert f"{MIXED}: slower on 2 of 3 questions, at worst 0.67 times plain decoding" in said
    assert "prompt_lookup: slower on none of 3 questions" in said
    assert re.search(r"0\.67\s*1500\s*1000\s*1 / 3 / 1", re.sub(r"<[^>]*>", " ", made))
    assert re.search(r"score \+250\.0 ms, .*propose \+100\.0 ms.*, other \+50\.0 ms", said)


def test_hostile_text_stays_text(made: str):
    found = Elements(made)
    assert HOSTILE[:60] in found.said and "\x1b" not in made
    assert {tag for tag, _ in found.elements}.isdisjoint({"img", "script", "link", "iframe", "object", "form", "base"})
    for tag, attributes in found.elements:
        assert not [key for key in attributes if key.startswith("on") or key in ("style", "src", "srcset")], tag
        assert attributes.get("href", "#").startswith("#")  # type: ignore[union-attr]
    style = re.findall(r"<style>(.*?)</style>", made, re.S)
    assert len(style) == 1 and "url(" not in style[0] and "@import" not in style[0]


def test_the_policy_allows_nothing_but_the_style_sheet(made: str):
    (policy,) = [a["content"] for tag, a in Elements(made).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy


def test_a_log_of_before_the_prompt_was_kept_makes_a_report(tmp_path: Path):
    plan, log = measured_log(tmp_path / "r.jsonl")
    for answer in log.answers():
        answer.prompt, answer.parts = "", {}
    log.provenance = {}
    said = Elements(report(plan, log)).said
    assert "not in this log" in said and "decoding" in said and "abc1234" in said


def test_what_spoils_the_numbers_is_said_at_the_top(tmp_path: Path):
    plan, log = measured_log(tmp_path / "r.jsonl")
    log.machine["0"]["foreign_cores"] = 3.0
    last = log.done["2"][-1]
    last.error = "out of <memory>"
    top = report(plan, log).partition("<main>")[0]
    assert "times are not valid" in top and "out of &lt;memory&gt;" in top
    assert "times are not valid" not in report(*measured_log(tmp_path / "quiet.jsonl"))


def test_a_run_of_one_question_and_plain_decoding_alone_makes_a_report(tmp_path: Path):
    plan, log = measured_log(tmp_path / "r.jsonl", ["only"], list(SPEEDS)[:1])
    assert "No method drafted anything" in report(plan, log)


# --- in a real browser


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server on this machine, and what was asked of it."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


def calling(address: str) -> str:
    """Text that asks a server and changes the title, were it ever taken for markup."""
    return (
        f'<img src="{address}/image" onerror="document.title=\'taken over\'"><script src="{address}/script"></script>'
    )


@pytest.mark.browser
def test_a_browser_draws_the_report_asks_nobody_and_keeps_hostile_text(tmp_path: Path, asked):
    address, paths = asked
    file = tmp_path / "report.html"
    write_report(file, *measured_log(tmp_path / "r.jsonl", ["first", calling(address), HOSTILE]))
    dom = chromium(file, "--dump-dom")
    assert "<title>draftwood: speed of recipes</title>" in dom and "<img" not in dom and "<script" not in dom
    assert f'&lt;img src="{address}/image"' in dom
    assert paths == []
    # A shape that holds another one is not drawn: a browser's parser knows no shape without an end tag.
    assert not re.findall(r"<(line|rect|path|circle)\b[^>]*>(?!</\1>)", dom)
    assert dom.count("<svg") == file.read_text().count("<svg")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_are_visible_in_light_and_dark(tmp_path: Path, scheme: str):
    image = pytest.importorskip("PIL.Image")
    file, shot = tmp_path / "report.html", tmp_path / "shot.png"
    write_report(file, *measured_log(tmp_path / "r.jsonl"))
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    chromium(file, f"--screenshot={shot}", "--window-size=1000,2400", *dark)
    with image.open(shot) as opened:
        colors = {color[:3] for _, color in opened.convert("RGB").getcolors(1 << 24)}
    expected = {
        "light": ("157a36", "2b7bbd", "ffffff"),
        "dark": ("4fc274", "4c9be0", "0e1217"),
    }  # faster, score, ground
    assert {tuple(bytes.fromhex(color)) for color in expected[scheme]} <= colors


@pytest.mark.browser
def test_markup_that_is_not_escaped_is_stopped_by_the_policy_and_by_nothing_else(tmp_path: Path, asked):
    address, paths = asked
    whole = page("a title", element("main", Markup(calling(address))))
    guarded, open_ = tmp_path / "guarded.html", tmp_path / "open.html"
    guarded.write_text(whole)
    open_.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", whole))
    assert "<title>a title</title>" in chromium(guarded, "--dump-dom") and paths == []
    chromium(open_, "--dump-dom")
    assert "/image" in paths  # so the check above can fail
