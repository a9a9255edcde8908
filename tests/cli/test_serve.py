"""`draftwood serve`: what it refuses before anything is loaded, and what its banner says."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette")

from draftwood import LLM
from draftwood.cli.main import app
from draftwood.cli.serve import banner, keys_of
from draftwood.errors import OptionError
from draftwood.server.app import Options
from draftwood.server.guard import Limits
from draftwood.server.service import service_of
from draftwood.testing.folder import write_folder


def test_keys_have_names_and_stand_once() -> None:
    assert keys_of(["ann:one", "two", "a:b:three"]) == {"ann": "one", "key2": "two", "a:b": "three"}
    for wrong in (["ann:"], ["one", "ann:one"], ["ann:one", "ann:two"]):
        with pytest.raises(OptionError, match="--api-key number"):
            keys_of(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--recipe", "unheard"], "unheard"),
        (["--recipes", "auto,promt_lookup"], "prompt_lookup"),
        (["--recipes", "prompt_lookup:deep=3"], "deep"),
        (["--api-key", "ann:"], "--api-key"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_read(options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--model", "no-such-model", *options])
    assert done.exit_code == 2 and said in done.stderr and "no-such-model" not in done.stderr


def test_the_banner_says_what_was_chosen(tmp_path: Path) -> None:
    llm = LLM(str(write_folder(tmp_path / "m")), "prompt_lookup", dtype="float32", max_num_seqs=3, max_cache_tokens=64)
    service = service_of(llm, ["prompt_lookup"], model_names=["tiny"])
    text = "\n".join(banner(service, Options(limits=Limits(hosts=(), keys={"ann": "x"})), "::1", 81))
    for said in (
        "tiny",
        "http://[::1]:81",
        "float32 on cpu",
        "prompt_lookup (lossless)",
        "3 sequences of 64 tokens",
        "64 tokens together",
        "ann",
        "any Host",
    ):
        assert said in text
    assert "autoregressive" in text and "x\n" not in text
