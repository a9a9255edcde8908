"""A trace of everything that an LLM does from now on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.bench.provenance import provenance
from draftwood.bench.trace.file import TraceWriter
from draftwood.bench.trace.recorder import Recorder
from draftwood.bench.trace.records import Header
from draftwood.core.host import on_host
from draftwood.errors import TraceError

if TYPE_CHECKING:
    from draftwood.llm import LLM


def header_of(llm: "LLM", options: Sequence[str] = ()) -> Header:
    """`options`: of the recipe, as KEY=VALUE words."""
    info, config, recipe = llm.runner.info, llm.config, llm.recipe
    return Header(
        model=info.name,
        fingerprint=info.fingerprint,
        backend=info.backend,
        recipe=llm.recipe_name,
        options=list(options),
        rule=type(recipe.verifier).__name__,
        lossless=recipe.lossless,
        vocab_size=info.vocab_size,
        max_model_len=llm.engine.longest,
        max_num_seqs=config.max_num_seqs,
        max_prefill_tokens=config.max_prefill_tokens,
        tokenizer="" if info.tokenizer is None else info.tokenizer.fingerprint,
        on_host=on_host(info.device),
        machine=provenance(info.backend, info.device),
    )


@contextmanager
def traced(llm: "LLM", path: Path | None, options: Sequence[str] = ()) -> Iterator[None]:
    """Inside, the rounds of this LLM are written to the file; None: to none. TraceError at the end if not all were."""
    if path is None:
        yield
        return
    writer = TraceWriter(path, header_of(llm, options))
    recorder = Recorder(writer)
    llm.record(recorder)
    try:
        yield
        try:
            recorder.flush()
            writer.close()
            failed = recorder in llm.engine.failed_watchers
        except OSError:
            failed = True
        if failed:
            raise TraceError(
                f"{path} is incomplete: not every round could be written\nhint: free space, or another folder"
            )
    finally:
        writer.abandon()
