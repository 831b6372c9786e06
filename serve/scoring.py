"""Log-probabilities of prompts, which texts that are written do not wait for: scores have a session of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mxspec.runtime.sampling.logprobs import Logprob, raw_logprob
from mxspec.serve.flight import Flight
from mxspec.serve.service import Served

Scores = list[Logprob | None]  # of a prompt's tokens, each after those before it; None of the first


async def score(flight: Flight, served: Served, prompts: Sequence[Sequence[int]], best: int) -> list[Scores]:
    """One for each prompt, with the `best` likeliest tokens beside each; ends early with the flight."""
    work = asyncio.wrap_future(served.scorer.submit(_score, flight, served, prompts, best))
    over = asyncio.create_task(flight.over())
    try:
        waited: set[asyncio.Future[Any]] = {work, over}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
    flight.require_going_on()
    return work.result()


def _score(flight: Flight, served: Served, prompts: Sequence[Sequence[int]], best: int) -> list[Scores]:
    found = []
    for prompt in prompts:
        logprobs: Scores = [None]
        for rows in served.engine.score(prompt, model=served.model.kind):
            if flight.cut is not None:
                return []
            following = prompt[len(logprobs) : len(logprobs) + len(rows)]
            logprobs += [raw_logprob(row, token, best) for row, token in zip(rows, following, strict=False)]
        found.append(logprobs)
    return found
