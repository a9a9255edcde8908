"""draftwood bench report: pages from logs, without a run."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwood.cli.main import app
from measured_log import measured_log


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    for temperature in (0.0, 1.0):
        measured_log(tmp_path / f"{temperature:g}.jsonl", temperature=temperature)
    return [str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl")]


def test_one_log_makes_a_report_and_several_make_the_table(logs: list[str], tmp_path: Path):
    html, table = tmp_path / "report.html", tmp_path / "recipes.md"
    done = CliRunner().invoke(app, ["bench", "report", logs[0], "--html", str(html), "--table", str(table)])
    assert done.exit_code == 0, done.output
    assert "report of 3 questions, 3 methods" in done.stdout and html.read_text().startswith("<!doctype html>")
    assert "## Greedy" in table.read_text() and "## Temperature 1" not in table.read_text()
    assert CliRunner().invoke(app, ["bench", "report", *logs, "--table", str(table)]).exit_code == 0
    assert "## Greedy" in table.read_text() and "## Temperature 1" in table.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing is to be written\nhint: --html"),
        (["{other}", "--html", "r.html"], "--html shows one run, 2 logs are given"),
        (["--html", "{log}"], "is not named as a page"),
        (["--table", "{log}"], "is not named as a page of Markdown"),
        (["nowhere.jsonl", "--table", "r.md"], "nowhere.jsonl cannot be read"),
    ],
)
def test_mistakes_are_refused_and_the_log_stays(
    logs: list[str], words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    before = Path(logs[0]).read_bytes()
    filled = [word.format(other=logs[1], log=logs[0]) for word in words]
    done = CliRunner().invoke(app, ["bench", "report", logs[0], *filled])
    assert done.exit_code == 2 and said in done.stderr
    assert Path(logs[0]).read_bytes() == before and not list(tmp_path.glob("r.*"))
