"""AsyncLLM answers as LLM does, for many tasks at once."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftwood import LLM
from draftwood.errors import EngineError, OptionError
from draftwood.models.loading.load import Loaded
from draftwood.server.async_llm import AsyncLLM

ROOT = Path(__file__).resolve().parents[2]


def run(loaded: Loaded, work: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with AsyncLLM(loaded, "prompt_lookup", recipes=["autoregressive"], **options) as llm:
            return await work(llm)

    return asyncio.run(main())


def test_many_tasks_get_the_answers_of_plain_python(loaded: Loaded) -> None:
    prompts = [f"abc {i} abc {i}" for i in range(12)]
    plain = LLM(loaded, "autoregressive")
    options: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 12}
    expected = [plain.generate(prompt, **options).token_ids for prompt in prompts]

    async def work(llm: AsyncLLM) -> list[Any]:
        return await asyncio.gather(*(llm.generate(prompt, **options) for prompt in prompts))

    assert [each.token_ids for each in run(loaded, work, max_num_seqs=4)] == expected


def test_a_stream_adds_up_to_its_result(loaded: Loaded) -> None:
    async def work(llm: AsyncLLM) -> tuple[str, Any]:
        chunks = [chunk async for chunk in llm.stream("abc", recipe="autoregressive", max_tokens=9, ignore_eos=True)]
        return "".join(chunk.text for chunk in chunks), chunks[-1].result

    text, result = run(loaded, work)
    assert text == result.text and result.recipe == "autoregressive" and result.num_tokens == 9


def test_samples_chats_and_deadlines(loaded: Loaded) -> None:
    async def work(llm: AsyncLLM) -> Any:
        several = await llm.generate("abc", n=3, seed=2, temperature=1.0, max_tokens=5)
        talk = await llm.chat([{"role": "user", "content": "abc"}], max_tokens=5)
        late = await llm.generate("abc", max_tokens=900, ignore_eos=True, timeout=0.1)
        return several, talk, late

    several, talk, late = run(loaded, work)
    plain = LLM(loaded, "autoregressive")
    expected = plain.generate("abc", n=3, seed=2, temperature=1.0, max_tokens=5)
    assert [each.text for each in several.samples] == [each.text for each in expected.samples]
    assert talk.text == plain.chat("abc", max_tokens=5).text
    assert late.finish_reason == "cancelled" and late.num_tokens < 900


def test_a_task_that_is_cancelled_takes_its_request_with_it(loaded: Loaded) -> None:
    async def work(llm: AsyncLLM) -> int:
        task = asyncio.create_task(llm.generate("abc", max_tokens=900, ignore_eos=True))
        while not llm._bridge.num_live:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async for _ in llm.stream("abc", max_tokens=900, ignore_eos=True):
            break
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not llm._bridge.num_live:
                break
        return llm._bridge.num_live

    assert run(loaded, work) == 0


def test_what_is_wrong_is_refused_before_it_is_queued(loaded: Loaded) -> None:
    async def work(llm: AsyncLLM) -> None:
        with pytest.raises(OptionError, match="recipes="):
            await llm.generate("abc", recipe="auto")
        with pytest.raises(OptionError, match="context"):
            await llm.generate("abc" * 1000)
        with pytest.raises(OptionError, match="one sample"):
            async for _ in llm.stream("abc", n=2, temperature=1.0):
                pass
        assert not llm._bridge.num_live
        await llm.close()
        with pytest.raises(EngineError):
            await llm.generate("abc")

    run(loaded, work)


@pytest.mark.slow
def test_it_needs_no_package_of_the_server(loaded: Loaded) -> None:
    code = (
        "import sys\n"
        "for name in 'starlette uvicorn prometheus_client llguidance anyio'.split(): sys.modules[name] = None\n"
        "import asyncio; from draftwood import AsyncLLM\n"
        "async def main():\n"
        f"    async with AsyncLLM({loaded.name!r}, 'autoregressive', dtype='float32') as llm:\n"
        "        print((await llm.generate('abc', max_tokens=3)).num_tokens)\n"
        "asyncio.run(main())\n"
        "import draftwood.cli.main, draftwood.engine.engine\n"
    )
    env = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.stdout.strip() == "3", done.stderr


@pytest.mark.long
def test_the_python_of_the_guide_works() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "server.md").read_text(), re.S)
    mine = [block for block in blocks if "from openai" not in block]
    assert len(mine) == 2
    for code in mine:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
