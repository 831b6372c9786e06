"""Log-probabilities of prompts. They have a session of their own, so no running text waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mxspec.runtime.sampling.logprobs import Logprob, raw_logprob
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served

Scores = list[Logprob | None]  # of each token of a prompt after those before it; None for the first token


async def score(flight: Flight, served: Served, prompts: Sequence[Sequence[int]], best: int) -> list[Scores]:
    """The scores of each prompt, with the `best` likeliest tokens beside each; stops when the flight is aborted."""
    work = asyncio.wrap_future(served.scorer.submit(_score, flight, served, prompts, best))
    over = asyncio.create_task(flight.wait_for_abort())
    try:
        waited: set[asyncio.Future[Any]] = {work, over}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
    flight.raise_if_aborted()
    return work.result()


def _score(flight: Flight, served: Served, prompts: Sequence[Sequence[int]], best: int) -> list[Scores]:
    found = []
    for prompt in prompts:
        logprobs: Scores = [None]
        for rows in served.engine.score(prompt, model=served.model.kind):
            if flight.abort_reason is not None:
                return []
            following = prompt[len(logprobs) : len(logprobs) + len(rows)]
            logprobs += [raw_logprob(row, token, best) for row, token in zip(rows, following, strict=False)]
        found.append(logprobs)
    return found
