"""The verdicts of the referee, of each config once a run: the same tiny pairs are compiled over and over."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def judged_once(factory: pytest.TempPathFactory) -> Iterator[None]:
    """While it lasts, compiling in this process asks for a verdict only where no worker of the run has had it."""
    from mxspec.compile import pipeline
    from mxspec.compile.check.referee import Verdict, judge

    run = factory.getbasetemp()
    place = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "verdicts"
    place.mkdir(exist_ok=True)

    def judge_once(config: Any, context_length: int) -> Verdict:
        asked = f"{config.to_json_string()} {context_length}"
        known = place / hashlib.sha256(asked.encode()).hexdigest()
        if known.exists():
            found: Verdict = pickle.loads(known.read_bytes())
            return found
        verdict = judge(config, context_length)
        written = known.with_suffix(f".{os.getpid()}")
        written.write_bytes(pickle.dumps(verdict))
        written.replace(known)
        return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "judge", judge_once)
        yield
