"""`draftwood serve`: the model behind OpenAI's HTTP interface."""

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import options
from draftwood.cli.bench.common.shared import recipe_names
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.server.app import Options
    from draftwood.server.service import Service

PLAIN = "autoregressive"


def serve(
    model: options.Model = "smollm2",
    recipe: options.RecipeName = "auto",
    recipes: Annotated[
        str, typer.Option("--recipes", help="More recipes that requests may choose, with commas between them.")
    ] = "",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[
        list[str] | None, typer.Option("--served-model-name", help="What requests call the model. Repeatable.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="[NAME:]KEY", help="Ask for keys; also DRAFTWOOD_API_KEYS. Repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A Host header to answer for; '*': any. Repeatable.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option("--max-num-seqs", min=1, help="Sequences that run together.")] = 8,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=2, help="Tokens of prompt and answer. Default: the model's.")
    ] = None,
    max_cache_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-cache-tokens", min=64, help="Cache entries of all texts together. Default: enough for all."
        ),
    ] = None,
    max_outstanding: Annotated[
        int, typer.Option("--max-outstanding", min=1, help="Sequences that run or wait; more are answered with 503.")
    ] = 256,
    rate_limit: Annotated[
        int | None, typer.Option("--rate-limit", min=1, help="Requests of one key in a minute; more: 429.")
    ] = None,
    max_body: Annotated[int, typer.Option("--max-body", min=1024, help="Bytes of a request.")] = 2 * 1024 * 1024,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds of an answer, unless the request says otherwise.")
    ] = None,
    drain: Annotated[float, typer.Option("--drain", min=0, help="Seconds that running answers get at the end.")] = 30.0,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Time plain decoding at the start.")] = True,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it. SIGTERM ends it after a grace period."""
    keys = keys_of([*(api_key or ()), *filter(None, os.environ.get("DRAFTWOOD_API_KEYS", "").split(","))])
    offered = list(dict.fromkeys([recipe, *(recipe_names(recipes) if recipes.strip() else ())]))
    recipe_names(recipe)  # wrong names and options are refused before the weights are read
    need_server()
    from draftwood.core.config import EngineConfig
    from draftwood.llm import LLM
    from draftwood.server.app import Options, Server
    from draftwood.server.guard import LOOPBACK, Limits
    from draftwood.server.service import service_of
    from draftwood.server.serving import run

    # Loopback's names always: a health check inside the machine uses them, and no other machine's name resolves to them.
    hosts = (*LOOPBACK, *(each.lower() for each in allow_host or ())) if allow_host or host in LOOPBACK else ()
    settings = Options(
        limits=Limits(hosts=() if "*" in hosts else hosts, keys=keys, max_body=max_body, rate=rate_limit),
        drain=drain,
        measure=measure,
    )
    log_to_stderr()
    config = EngineConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len, max_cache_tokens=max_cache_tokens)
    llm = LLM(model, recipe, dtype=dtype, device=device, config=config)
    service = service_of(llm, offered, max_outstanding=max_outstanding, model_names=name or [model], timeout=timeout)

    def ready(port: int) -> None:
        for line in banner(service, settings, host, port):
            print(line, file=sys.stderr, flush=True)

    run(Server(service, settings), host, port, ready)


def banner(service: "Service", settings: "Options", host: str, port: int) -> list[str]:
    """What was chosen, and why."""
    llm, shown = service.first, f"[{host}]" if ":" in host else host
    speed = service.plain_tokens_per_second
    chosen = "lossless" if llm.recipe.lossless else "LOSSY: its texts do not follow the model's distribution"
    keys = settings.limits.keys
    lines = [
        f"draftwood serves {', '.join(service.model_names)} on http://{shown}:{port}",
        f"  backend   {llm.loaded.info.arithmetic} on {llm.device}"
        + (f", {speed:.1f} tokens/s plain" if speed else ""),
        f"  recipe    {service.default_recipe} ({chosen})",
        *(f"            {note}" for note in llm.recipe.notes),
        f"  requests may choose {', '.join(service.offered)}",
        f"  up to {llm.config.max_num_seqs} sequences of {service.max_model_len} tokens at a time"
        + (f", {llm.config.max_cache_tokens} tokens together" if llm.config.max_cache_tokens else ""),
        f"  keys      {', '.join(keys)}" if keys else "  no API key is asked for",
    ]
    if not settings.limits.hosts:
        lines.append("  any Host header is answered; --allow-host NAME narrows that")
    return lines


def keys_of(given: list[str]) -> dict[str, str]:
    """NAME:KEY or KEY alone, whose name is its number."""
    found: dict[str, str] = {}
    for i, each in enumerate(given, 1):
        name, sign, key = each.strip().rpartition(":")
        name = name if sign else f"key{i}"
        if not key or name in found or key in found.values():
            raise OptionError(f"--api-key number {i} is empty, or given twice\nhint: NAME:KEY, each once")
        found[name] = key
    return found


def need_server() -> None:
    """OptionError if the packages of the extra are missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise OptionError(f"the server needs {error.name}\nhint: pip install 'draftwood[server]'") from None


def log_to_stderr(*, quiet: bool = False) -> None:
    """Our messages as lines, those of requests as they are: JSON. `quiet`: only errors."""
    plain, lines = logging.StreamHandler(), logging.StreamHandler()
    lines.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    usual = {"draftwood": logging.INFO, "draftwood.requests": logging.INFO, "uvicorn": logging.WARNING}
    for name, level in usual.items():
        found = logging.getLogger(name)
        found.handlers, found.propagate = [plain if name == "draftwood.requests" else lines], False
        found.setLevel(logging.ERROR if quiet else level)
