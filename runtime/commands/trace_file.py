"""The file that --trace writes: the rounds of an answer, as JSON lines or as a page to look at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxspec.runtime.cli.output import write_file
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Event, Finished, Round
from mxspec.runtime.request import Request
from mxspec.runtime.trace.collect import VERSION, Collector
from mxspec.runtime.trace.page import render_page

PLAIN_TOKENS = 48  # tokens written without a drafter afterwards, for the time of plain decoding in the trace


def write_trace(path: Path, engine: Engine, request: Request, events: Sequence[Event]) -> None:
    """Write all events of a request, with the time of plain decoding. Raises MxspecError."""
    collector = Collector(lambda token: engine.tokenizer.decode([token], skip_special_tokens=False))
    for event in events:
        collector.add(event)
    objects = [_header(engine, request, events), *collector.objects]
    lines = "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in objects)
    write_file("--trace", path, render_page(objects) if path.suffix == ".html" else lines)


def _header(engine: Engine, request: Request, events: Sequence[Event]) -> dict[str, Any]:
    statistics = next(event.statistics for event in events if isinstance(event, Finished) and event.sample == 0)
    prompt = request.prompt if request.messages is None else request.messages[-1]["content"]
    return {
        "trace": VERSION,
        "bundle": engine.bundle.path.name,
        "prompt": prompt if isinstance(prompt, str) else engine.tokenizer.decode(list(prompt or ())),
        "prompt_tokens": statistics.prompt_tokens,
        "samples": request.samples,
        "k": statistics.k,
        "drafter": statistics.drafter,
        "verifier": statistics.verifier,
        "proposal": statistics.proposal,
        "lenience": request.lenience,
        "lossless": statistics.lossless,
        "plain_step_s": _plain_step_seconds(engine, request, min(PLAIN_TOKENS, statistics.emitted)),
    }


def _plain_step_seconds(engine: Engine, request: Request, tokens: int) -> float | None:
    """The mean round of some tokens of the same request without a drafter; None where it has none."""
    least = min(request.min_new_tokens, tokens)
    plain = replace(request, drafter="none", k=0, lenience=1.0, max_new_tokens=tokens, min_new_tokens=least)
    rounds = [event for event in engine.submit(plain) if isinstance(event, Round) and event.sample == 0]
    seconds = [done.seconds for done in rounds[1:]]
    return sum(seconds) / len(seconds) if seconds else None
