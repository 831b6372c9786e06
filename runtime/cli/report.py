"""The report of an answer: the closing line, and the object of --json and of a batch job's lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxspec.runtime.events import FinishReason, Statistics
    from mxspec.runtime.handle import Answer
    from mxspec.runtime.request import Request
    from mxspec.runtime.sampling.logprobs import Logprob


def closing_line(statistics: Statistics, reason: FinishReason) -> str:
    """One line: time to first token, speed, acceptance, tokens a round, tokens read and written, finish reason."""
    first_token = statistics.waiting_seconds + statistics.prefill_seconds
    parts = [f"TTFT {first_token * 1e3:.0f} ms"]
    if statistics.decode_tokens_per_second is not None:
        parts.append(f"decode {statistics.decode_tokens_per_second:.1f} tok/s")
    if statistics.beams > 1:
        parts.append(f"{statistics.beams} beams")
    if statistics.acceptance is not None:
        parts.append(f"acceptance {statistics.acceptance:.3f}{'' if statistics.beams == 1 else ' of steps'}")
    if len(statistics.kept_of) > 1:
        parts.append("kept " + ", ".join(f"{count:,} of {name}" for name, count in statistics.kept_of.items()))
    if statistics.tokens_per_round is not None:
        what = "tokens" if statistics.beams == 1 else "steps"
        parts.append(f"{statistics.tokens_per_round:.2f} {what}/round")
    if statistics.experts_a_step is not None:
        parts.append(f"{statistics.experts_a_step:.1f} experts a layer")
    parts.append(f"{statistics.emitted:,} tokens in {statistics.rounds:,} rounds")
    reused = f", {statistics.reused_tokens:,} of them reused" if statistics.reused_tokens else ""
    if statistics.reread_tokens:
        reused += f", {statistics.reread_tokens:,} re-read (windows had dropped them)"
    parts += [f"{statistics.prompt_tokens:,} prompt tokens{reused}", f"K = {statistics.k}"]
    if statistics.seed is not None:
        parts += [f"verifier {statistics.verifier}, {statistics.proposal}", f"seed {statistics.seed}"]
    if not statistics.lossless:
        parts.append("NOT LOSSLESS: lenience was asked for")
    return " · ".join([*parts, f"ended by {reason}"])


def answers_as_json(answers: Sequence[Answer], request: Request) -> dict[str, Any]:
    """One answer as an object; if several were requested, `answers` is a list of such objects."""
    reports = [answer_as_json(answer, with_logprobs=request.logprobs is not None) for answer in answers]
    return {"answers": reports} if request.n > 1 else reports[0]


def answer_as_json(answer: Answer, *, with_logprobs: bool = False) -> dict[str, Any]:
    """An answer as an object: its text, and its statistics."""
    report = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.reason,
        **statistics_as_json(answer.statistics),
    }
    if answer.score is not None:
        report["score"] = answer.score
    if with_logprobs and answer.logprobs is not None:
        report["logprobs"] = list(map(_logprob_as_json, answer.logprobs))
    return report


def statistics_as_json(statistics: Statistics) -> dict[str, Any]:
    """Statistics as an object, with the same units."""
    names = [field.name for field in fields(statistics) if field.name != "emitted"]
    return {name.replace("_seconds", "_s"): getattr(statistics, name) for name in names} | {
        "rest_s": statistics.rest_seconds,
        "decode_tok_per_s": statistics.decode_tokens_per_second,
        "timings": timings(statistics),
    }


def timings(statistics: Statistics) -> dict[str, float]:
    """Statistics in milliseconds under the names of llama-server, for programs that read its answers."""
    return {
        "cache_n": statistics.reused_tokens,
        "prompt_n": statistics.prompt_tokens - statistics.reused_tokens,
        "prompt_ms": statistics.prefill_seconds * 1e3,
        "predicted_n": statistics.emitted,
        "predicted_ms": statistics.decode_seconds * 1e3,
        "draft_n": statistics.drafted,
        "draft_n_accepted": statistics.accepted,
    }


def _logprob_as_json(entry: Logprob) -> dict[str, Any]:
    """The token's log-probability, and [id, log-probability] of the likeliest tokens."""
    return {
        "id": entry.token,
        "logprob": _finite(entry.logprob),
        "top": [[token, _finite(value)] for token, value in entry.top],
    }


def _finite(value: float) -> float | None:
    """A log-probability for JSON, which has no infinity: null stands for a probability of 0."""
    return value if math.isfinite(value) else None
