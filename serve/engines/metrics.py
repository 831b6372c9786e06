"""The metrics for Prometheus, under vLLM's names where the meaning is the same, so that its dashboards work here.

Names after https://docs.vllm.ai/en/latest/usage/metrics/; docs/serve.md says what differs.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from mxspec.runtime.events import Round, Statistics
from mxspec.serve.engines.models import Served

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_MODEL = "model_name"
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80, 160, 640)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 960)
_EXPERTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"mxspec:{name}", about, labels or (_MODEL,), registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"mxspec:{name}", about, (_MODEL,), buckets=buckets, registry=registry)

        self._running = Gauge("mxspec:num_requests_running", "Texts that have a slot.", (_MODEL,), registry=registry)
        self._waiting = Gauge("mxspec:num_requests_waiting", "Texts that wait.", (_MODEL,), registry=registry)
        self._caches = Gauge("mxspec:cache_bytes", "Bytes of key-value caches.", (_MODEL,), registry=registry)
        self._prompt = counter("prompt_tokens", "Tokens of prompts, those from the prefix cache included.")
        self._generated = counter("generation_tokens", "Tokens written.")
        self._queries = counter("prefix_cache_queries", "Tokens of prompts that were looked for in the slots.")
        self._hits = counter("prefix_cache_hits", "Tokens of prompts that a slot held already.")
        self._reread = counter(
            "prefix_cache_passed", "Tokens of prompts that a slot had read, read again: windows had passed them."
        )
        self._drafts = counter("spec_decode_num_drafts", "Rounds in which anything was drafted.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens that were kept.")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were kept, by their place in the round.",
            _MODEL,
            "position",
        )
        self._experts = histogram(
            "step_experts", "Experts of a layer that a step of a mixture touched, the mean of its layers.", _EXPERTS
        )
        self._success = counter("request_success", "Texts that have ended.", _MODEL, "finished_reason")
        self._first = histogram("time_to_first_token_seconds", "From a request to its first token.", _FIRST_TOKEN)
        self._between = histogram(
            "inter_token_latency_seconds", "From a round to the next, over its tokens, for each of them.", _TOKEN
        )
        self._whole = histogram("e2e_request_latency_seconds", "From a request to its end.", _WHOLE)
        self._queue = histogram("request_queue_time_seconds", "From a request to its slot.", _WHOLE)
        self._prefill = histogram("request_prefill_time_seconds", "From a slot to the first token.", _WHOLE)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the last.", _WHOLE)
        self._prompts = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._lengths = histogram("request_generation_tokens", "Tokens written of a text.", _TOKENS)
        self._refused = Counter("mxspec:requests_refused", "Requests beyond the queue.", registry=registry)
        self._responses = counter("http_responses", "Answers, by route and status.", "route", "status")

    def add_model(self, served: Served) -> None:
        """Show how many of its texts run and wait, and what its caches take."""
        self._running.labels(served.id).set_function(lambda: served.engine.running)
        self._caches.labels(served.id).set_function(lambda: served.engine.cache_bytes)
        self._waiting.labels(served.id).set_function(lambda: max(served.under_way - served.engine.running, 0))

    def refuse(self) -> None:
        """Count a request that was refused because the queues were full."""
        self._refused.inc()

    def respond(self, route: str, status: int) -> None:
        """Count an answer."""
        self._responses.labels(route, str(status)).inc()

    def begin(self, model: str, statistics: Statistics, *, follows: bool) -> None:
        """Count a text at its first token; `follows`: another sample has read the prompt."""
        self._first.labels(model).observe(statistics.waiting_seconds + statistics.prefill_seconds)
        self._queue.labels(model).observe(statistics.waiting_seconds)
        self._prefill.labels(model).observe(statistics.prefill_seconds)
        if not follows:
            self._prompts.labels(model).observe(statistics.prompt_tokens)
            self._prompt.labels(model).inc(statistics.prompt_tokens)
            self._queries.labels(model).inc(statistics.prompt_tokens)
            self._hits.labels(model).inc(statistics.reused_tokens)
            self._reread.labels(model).inc(statistics.reread_tokens)

    def add_round(self, model: str, done: Round, seconds: float | None) -> None:
        """Count a round of a text, with the seconds since its last round; None for the first."""
        self._generated.labels(model).inc(done.emitted)
        if done.drafted:
            self._drafts.labels(model).inc()
            self._drafted.labels(model).inc(done.drafted)
            self._accepted.labels(model).inc(done.accepted)
            for position in range(done.accepted):
                self._accepted_at.labels(model, str(position)).inc()
        if done.experts is not None:
            self._experts.labels(model).observe(done.experts)
        if seconds is not None:
            between = self._between.labels(model)
            for _ in range(done.emitted):
                between.observe(seconds / done.emitted)

    def end(self, model: str, statistics: Statistics, reason: str, seconds: float) -> None:
        """Count a text that has ended, `seconds` after its request came."""
        self._success.labels(model, reason).inc()
        self._whole.labels(model).observe(seconds)
        if statistics.rounds:
            self._decode.labels(model).observe(statistics.decode_seconds)
        self._lengths.labels(model).observe(statistics.emitted)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
