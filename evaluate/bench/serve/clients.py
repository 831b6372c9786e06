"""Clients that request one text after another, from the engine in this process or from a server."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mxspec.evaluate.bench.serve.server import Address
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round
from mxspec.runtime.request import Request

ANSWER_SECONDS = 600.0


Writer = Callable[[Sequence[int], int, bool], Iterator[object]]
"""Writes a greedy text of so many tokens after a prompt, plain or drafted; each item is a piece, as it arrives."""


def in_process(engine: Engine) -> Writer:
    """The engine itself; a prompt reuses no cache."""
    keys = itertools.count()

    def write(prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        request = Request(
            prompt=prompt,
            max_new_tokens=new_tokens,
            temperature=0,
            ignore_eos=True,
            cache_key=str(next(keys)),
            drafter="none" if plain else None,
        )
        return (event for event in engine.submit(request) if isinstance(event, Round))

    return write


def streamed(address: Address, path: str, body: Callable[[Sequence[int], int, bool], dict[str, Any]]) -> Writer:
    """A server whose answers are streams of `data:` lines; `body` makes the request. MxspecError for its errors."""

    def write(prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=ANSWER_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body(prompt, new_tokens, plain)), headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise MxspecError(f"{path}: got status {answer.status}: {answer.read(300)!r}")
            for line in answer:
                if line.startswith(b"data: {"):
                    if line.startswith(b'data: {"error"'):
                        raise MxspecError(f"{path}: {line.decode(errors='replace').strip()}")
                    yield line
        except (OSError, http.client.HTTPException) as error:
            raise MxspecError(f"{path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    return write


def of_specserve(address: Address) -> Writer:
    """The completions of specserve."""
    keys = itertools.count()

    def body(prompt: Sequence[int], new_tokens: int, plain: bool) -> dict[str, Any]:
        ours = {"ignore_eos": True, "cache_key": str(next(keys)), **({"drafter": "none"} if plain else {})}
        asked = {"prompt": list(prompt), "max_tokens": new_tokens, "temperature": 0, "stream": True}
        return {**asked, "mxspec": ours}

    return streamed(address, "/v1/completions", body)


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer as its client heard it: perf_counter at the request, and at each piece."""

    asked: float
    pieces: tuple[float, ...]

    @property
    def first_seconds(self) -> float:
        return self.pieces[0] - self.asked

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """When each piece came, and its seconds after the previous piece."""
        return [(after, after - before) for before, after in itertools.pairwise(self.pieces)]


def hear(writer: Writer, prompt: Sequence[int], new_tokens: int, *, plain: bool = False) -> Heard:
    """Request one text, and read it to its end."""
    asked = time.perf_counter()
    return Heard(asked, tuple(time.perf_counter() for _ in writer(prompt, new_tokens, plain)))


def ask_at_once(
    writer: Writer, prompts: Sequence[Sequence[Sequence[int]]], new_tokens: int, *, plain: bool = False
) -> list[list[Heard]]:
    """One client for each list of prompts, which requests them one after another; raises a client's first error."""
    heard: list[list[Heard]] = [[] for _ in prompts]
    errors: list[BaseException] = []

    def client(number: int) -> None:
        try:
            for prompt in prompts[number]:
                heard[number].append(hear(writer, prompt, new_tokens, plain=plain))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return heard


def tokens_per_second(heard: Sequence[Sequence[Heard]], new_tokens: int) -> float:
    """Speed of all clients together, from the first request to the last piece."""
    answers = [answer for client in heard for answer in client]
    began, ended = min(answer.asked for answer in answers), max(answer.pieces[-1] for answer in answers)
    return len(answers) * new_tokens / (ended - began)
