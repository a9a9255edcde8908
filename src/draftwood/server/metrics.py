"""Prometheus metrics. Counters of speculation have vLLM's names after the colon, so that its dashboards can be used."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftwood.server.ask import Ask
from draftwood.server.bridge import Bridge

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKEN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2)


class Metrics:
    """Counted when a request ends; the queue is that of the bridge, at the time it is asked for."""

    def __init__(self, bridge: Bridge) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"draftwood:{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Any:
            return Histogram(f"draftwood:{name}", text, ("recipe",), registry=self.registry, buckets=buckets)

        self.drafts = counter("spec_decode_num_drafts", "Rounds that drafted.", "recipe")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Drafted tokens.", "recipe")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Drafted tokens that became text.", "recipe")
        self.accepted_per_pos = counter(
            "spec_decode_num_accepted_tokens_per_pos", "The same by depth below the root, from 0.", "recipe", "position"
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.", "recipe")
        self.cached_tokens = counter("prompt_tokens_cached", "Tokens of prompts that were in the cache.", "recipe")
        self.generation_tokens = counter("generation_tokens", "Tokens of answers.", "recipe")
        self.finished = counter("sequences", "Sequences by why they ended.", "recipe", "reason")
        self.responses = counter("requests", "HTTP requests for answers.", "status")
        self.disabled = counter("drafters_disabled", "Sequences whose drafter was disabled.", "recipe")
        self.first_token = histogram("time_to_first_token_seconds", "From the request to its first token.", SECONDS)
        self.per_token = histogram("time_per_output_token_seconds", "Of each token after the first.", TOKEN_SECONDS)
        self.whole = histogram("request_latency_seconds", "From the request to its end.", SECONDS)
        gauges = {
            "num_requests_running": ("Sequences that emit tokens.", lambda: bridge.num_running),
            "num_requests_waiting": ("Sequences without a token so far.", lambda: bridge.num_live - bridge.num_running),
            "num_outstanding": ("Sequences that callers wait for.", lambda: bridge.outstanding),
        }
        for name, (text, read) in gauges.items():
            Gauge(f"draftwood:{name}", text, registry=self.registry).set_function(read)

    def observe(self, asks: Sequence[Ask]) -> None:
        """Sequences of a request that has ended."""
        for ask in asks:
            r, s, recipe = ask.request, ask.request.stats, ask.recipe
            self.drafts.labels(recipe).inc(s.rounds_all + s.rounds_some + s.rounds_none)
            self.draft_tokens.labels(recipe).inc(s.draft_tokens)
            self.accepted_tokens.labels(recipe).inc(sum(s.accepted))
            for position, count in enumerate(s.accepted):
                self.accepted_per_pos.labels(recipe, str(position)).inc(count)
            if ask.follows is None:
                self.prompt_tokens.labels(recipe).inc(len(r.prompt))
                self.cached_tokens.labels(recipe).inc(s.cached_tokens)
            self.generation_tokens.labels(recipe).inc(len(r.output))
            self.finished.labels(recipe, ask.ended_by or r.finish_detail or r.finish_reason or "disconnected").inc()
            if s.disabled:
                self.disabled.labels(recipe).inc()
            if ask.first_at is not None:
                self.first_token.labels(recipe).observe(ask.first_at - ask.asked_at)
            if ask.ended_at is not None:
                self.whole.labels(recipe).observe(ask.ended_at - ask.asked_at)
                if ask.first_at is not None and len(r.output) > 1:
                    self.per_token.labels(recipe).observe((ask.ended_at - ask.first_at) / (len(r.output) - 1))

    def text(self) -> bytes:
        return generate_latest(self.registry)
