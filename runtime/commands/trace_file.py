"""The file that --trace writes: the rounds of an answer, as JSON lines or as a page to look at."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.errors import MxspecError

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.events import Statistics
    from mxspec.runtime.request import Request

SUFFIXES = (".jsonl", ".html")
PLAIN_TOKENS = 48  # tokens written without a drafter afterwards, for the time of plain decoding in the trace


def check_trace_path(path: Path) -> None:
    """Raise MxspecError for a file that cannot be written, before anything else is done."""
    if path.suffix not in SUFFIXES:
        raise MxspecError(f"--trace {path}: got a name that ends in {path.suffix!r}, expected {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise MxspecError(f"--trace {path}: the folder {path.parent} does not exist")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise MxspecError(f"--trace {path}: cannot be written")


class TraceFile:
    """Collects the events of one request, and writes them when it has ended."""

    def __init__(self, path: Path, engine: Engine, request: Request) -> None:
        from mxspec.runtime.trace.collect import Collector

        self.path = path
        self._engine = engine
        self._request = request
        self._collector = Collector(lambda token: engine.tokenizer.decode([token], skip_special_tokens=False))
        self.add = self._collector.add

    def write(self, statistics: Statistics) -> None:
        """Write all events, with the time of plain decoding. Raises MxspecError."""
        objects = [self._header(statistics), *self._collector.objects]
        if self.path.suffix == ".html":
            from mxspec.runtime.trace.page import render_page

            text = render_page(objects)
        else:
            text = "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in objects)
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8", errors="replace")
            beside.replace(self.path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise MxspecError(f"--trace {self.path}: cannot be written: {error.strerror}") from None

    def _header(self, statistics: Statistics) -> dict[str, Any]:
        from mxspec.runtime.trace.collect import VERSION

        request = self._request
        prompt = request.prompt if request.messages is None else request.messages[-1]["content"]
        return {
            "trace": VERSION,
            "bundle": self._engine.bundle.path.name,
            "prompt": prompt if isinstance(prompt, str) else self._engine.tokenizer.decode(list(prompt or ())),
            "prompt_tokens": statistics.prompt_tokens,
            "samples": request.samples,
            "k": statistics.k,
            "drafter": statistics.drafter,
            "verifier": statistics.verifier,
            "proposal": statistics.proposal,
            "lenience": request.lenience,
            "lossless": statistics.lossless,
            "plain_step_s": self._plain_step_seconds(statistics.emitted),
        }

    def _plain_step_seconds(self, emitted: int) -> float | None:
        """The mean round of some tokens of the same request without a drafter; None where it has none."""
        from mxspec.runtime.events import Round

        tokens = min(PLAIN_TOKENS, emitted)
        plain = replace(
            self._request,
            drafter="none",
            k=0,
            lenience=1.0,
            max_new_tokens=tokens,
            min_new_tokens=min(self._request.min_new_tokens, tokens),
        )
        rounds = [event for event in self._engine.submit(plain) if isinstance(event, Round) and event.sample == 0]
        seconds = [done.seconds for done in rounds[1:]]
        return sum(seconds) / len(seconds) if seconds else None
