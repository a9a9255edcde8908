"""llama.cpp as a peer, through xllamacpp. It reads the GGUF file itself and computes with its quantised weights.

Its n-gram modes keep earlier answers (a question asked twice is copied the second time), so each of their answers gets a
new server, started before the clock. It reports the times to the first token and after it; the total is measured here.
"""

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from draftwood.bench.spec.peers import Settings
from draftwood.errors import OptionError
from draftwood.models.loading.gguf.header import TYPES
from draftwood.models.loading.gguf.split import read_model
from draftwood.models.loading.resolve import PACKAGED, packaged_file

LOOPBACK = "127.0.0.1"
CONTEXT, MARGIN = 4096, 128  # cache entries at least, and entries for drafts beyond the text


def gguf_file(model: str) -> Path:
    """The file behind a model's name."""
    if model in PACKAGED:
        return packaged_file(model)
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf" and path.is_file():
        return path
    raise OptionError(f"llama.cpp cannot read {model!r}\nhint: a GGUF file, or one of {', '.join(sorted(PACKAGED))}")


def weight_type(file: Path) -> str:
    """The type that holds most of a GGUF file's bytes, for example Q4_1."""
    sizes: Counter[int] = Counter()
    for tensor in read_model(file).tensors.values():
        sizes[tensor.type] += tensor.num_bytes
    (kind, _), *_ = sizes.most_common(1)
    return TYPES[kind][0]


class LlamaCpp:
    """`mode` is empty for plain decoding, or draft, or ngram-simple, ngram-map-k, ..."""

    settings: Settings

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.server: Any = None

    def open(self, settings: Settings) -> dict[str, Any]:
        x = _library()
        self.settings = settings
        self._start()
        file = gguf_file(settings.model)
        return {
            "xllamacpp": x.__version__,
            "precision": weight_type(file),
            "device": "cpu",
            "file": file.name,
            "system": str(x.get_system_info()),
            "threads": settings.threads,
        }

    def _start(self) -> None:
        x = _library()
        self.server = None  # frees the memory of the old one first
        p = x.CommonParams()
        p.model.path = str(gguf_file(self.settings.model))
        p.hostnames, p.port = [LOOPBACK], 0  # it opens a port, which only this machine may reach
        p.n_parallel, p.n_gpu_layers, p.verbosity = 1, 0, -1  # always on the CPU, not on `settings.device`
        p.n_ctx = max(CONTEXT, self.settings.context + MARGIN)
        p.cache_ram_mib = 0  # keeps no earlier prompts
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = self.settings.threads
        if self.mode == "draft":
            p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            draft = p.speculative.draft
            draft.mparams.path, draft.n_gpu_layers = str(gguf_file(self.settings.draft)), 0
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = self.settings.threads
        elif self.mode:
            kind = f"COMMON_SPECULATIVE_TYPE_{self.mode.upper().replace('-', '_')}"
            p.speculative.types = [getattr(x.common_speculative_type, kind)]
        self.server = x.Server(p)
        host = urlsplit(self.server.listening_address).hostname
        if host != LOOPBACK:
            self.server = None
            raise RuntimeError(f"llama.cpp listens on {host}, not on {LOOPBACK}")

    def answer(self, method: str, prompt: Sequence[int], index: int) -> dict[str, Any]:
        if self.mode:
            self._start()
            self._complete([next(token for token in range(2) if token != prompt[0])], 2, index)
        start = perf_counter()
        said = self._complete(prompt, self.settings.max_tokens, index)
        seconds = perf_counter() - start
        times, usage = said["timings"], said["usage"]
        if usage["prompt_tokens"] != len(prompt):
            raise RuntimeError(f"it read {usage['prompt_tokens']} prompt tokens instead of {len(prompt)}")
        if times.get("cache_n"):
            raise RuntimeError(f"{times['cache_n']} prompt tokens came from its cache")
        emitted, accepted = usage["completion_tokens"], times.get("draft_n_accepted", 0)
        tokens = said.get("__verbose", {}).get("tokens", [])
        known = len(tokens) == emitted
        return {
            "tokens": tokens if known else [],
            "emitted": emitted,
            "seconds": seconds,
            "first_seconds": times["prompt_ms"] / 1000,
            "decode_seconds": times["predicted_ms"] / 1000,
            "passes": emitted - accepted,  # a pass emits what it accepted and one more
            "drafted": times.get("draft_n", 0),
            "accepted": accepted,
            "finish": said["choices"][0]["finish_reason"],
            "counted": "returned ids" if known else "its own count; it returned no ids",
        }

    def _complete(self, prompt: Sequence[int], max_tokens: int, index: int) -> dict[str, Any]:
        ask: dict[str, Any] = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": self.settings.temperature,
            "cache_prompt": False,
            "return_tokens": True,
            "verbose": True,  # otherwise the ids are not returned
        }
        if self.settings.temperature > 0:
            ask |= {"samplers": ["temperature"], "seed": self.settings.seed + index}
        said = self.server.handle_completions(ask)
        if "error" in said:
            raise RuntimeError(f"llama.cpp: {said['error'].get('message', said['error'])}")
        return said


def _library() -> Any:
    """Imported when the peer is opened, never in the parent process."""
    return importlib.import_module("xllamacpp")
