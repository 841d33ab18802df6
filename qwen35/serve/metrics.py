"""What the server counts, in Prometheus' form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from qwen35.api import Qwen35
    from qwen35.serve.queue import FairQueue
    from qwen35.stats import Stats

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counters of one server, apart from every other registry of the process."""

    def __init__(self, model: Qwen35, queue: FairQueue) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"qwen35_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, value: Any) -> None:
            Gauge(f"qwen35_{name}", text, registry=registry).set_function(value)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"qwen35_{name}", text, registry=registry, buckets=_SECONDS)

        self.requests = counter("requests", "Requests by path and status", "path", "status")
        self.cancelled = counter("cancelled", "Answers that were cut", "why")
        self.prompt = counter("prompt_tokens", "Tokens of prompts, kept ones included")
        self.cached = counter("cached_tokens", "Tokens of prompts that a kept state stood for")
        self.hits = counter("prefix_cache", "Prompts by whether a kept state was found", "found")
        self.generated = counter("generated_tokens", "Tokens of answers")
        self.swaps = counter("context_swaps", "Hardware contexts given up for another")
        self.loads = counter("context_loads", "Hardware contexts loaded")
        self.recoveries = counter("device_recoveries", "Devices opened again after they were lost")
        self.first = histogram("time_to_first_token_seconds", "From a request's arrival to its first token")
        self.queued = histogram("queue_seconds", "From a request's arrival to its turn")
        self.took = histogram("request_seconds", "From a request's arrival to its answer's end")
        self.decode = histogram("token_seconds", "Mean time a token of an answer after its first")
        gauge("queue_waiting", "Requests that wait", lambda: queue.waiting)
        gauge("queue_running", "Requests that are answered", lambda: queue.running)
        gauge("prefix_cache_states", "States kept", lambda: len(model.session.cache or ()))
        gauge(
            "prefix_cache_bytes",
            "Bytes of the states kept",
            lambda: model.session.cache.nbytes if model.session.cache is not None else 0,
        )
        gauge(
            "contexts_resident",
            "Hardware contexts loaded now",
            lambda: getattr(getattr(model.device, "pool", None), "resident", 0),
        )

    def answered(self, stats: Stats, waited: float) -> None:
        """Counts an answer, whole or cut."""
        self.queued.observe(waited)
        self.prompt.inc(stats.prompt_tokens)
        self.cached.inc(stats.cached_tokens)
        self.generated.inc(stats.new_tokens)
        self.swaps.inc(max(stats.swaps, 0))
        self.loads.inc(max(stats.loads, 0))
        if stats.prompt_tokens:
            self.hits.labels("yes" if stats.cached_tokens else "no").inc()
        if stats.new_tokens:
            self.first.observe(waited + stats.first_token_s)
        if stats.new_tokens > 1:
            self.decode.observe(stats.decode_s / (stats.new_tokens - 1))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
