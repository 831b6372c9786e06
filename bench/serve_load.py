"""Many clients of one server, some of which disconnect, make mistakes or read slowly: is any answer wrong or lost?

    python bench/serve_load.py build/demo.bundle --record build/records/serve_load.json

specserve runs in a process of its own. Clients ask one request after another over the loopback address: a tenth close
the connection during the answer, a tenth send an invalid request, a tenth read a few bytes at a time. Afterwards every
answer is compared with the one that `specrun --prompts` writes for the same settings: greedy answers, and sampled ones
that a seed determines. The server's anonymous memory is read all the time.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from results import LoadResult

from mxspec.evaluate.bench.medians import median, percentile
from mxspec.evaluate.bench.memory import anonymous_bytes
from mxspec.evaluate.bench.serve.server import specserve
from mxspec.evaluate.options import Run, record_options
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command

PIECES = ("def ", "class ", "import os\n", "for i in range(", "return ", "x = [", "\n    ", "self.", "print(")
CANCELLED, MALFORMED, SLOW = 0.1, 0.1, 0.1  # shares of the requests
PATIENCE = 120.0  # a request without an answer for these seconds counts as stuck
SLOW_BYTES, SLOW_SECONDS = 256, 0.002  # a slow reader reads so few bytes at a time, and then sleeps
Body = dict[str, Any]


@dataclass(slots=True)
class Counts:
    """What became of the requests."""

    asked: int = 0
    whole: int = 0
    cancelled: int = 0
    malformed: int = 0  # malformed requests that were refused, as they should be
    later: int = 0  # how often the queue was full, and a client tried again
    stuck: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of whole answers to clients that are not slow
    memory: list[tuple[float, int]] = field(default_factory=list)  # seconds since the start, anonymous bytes


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """An answer that was read to its end."""

    key: str
    text: str
    reason: str


def request_pool(count: int, seed: int, longest: int) -> dict[str, Body]:
    """`count` requests by their keys, with the fields of specrun's batch lines."""
    rng = random.Random(seed)
    pool: dict[str, Body] = {}
    for number in range(count):
        prompt = "".join(rng.choices(PIECES, k=rng.randrange(1, max(longest // 8, 2))))[: longest // 2]
        body: Body = {"prompt": prompt, "max_new_tokens": rng.randrange(1, longest // 2)}
        if rng.random() < 0.6:
            body |= {"temperature": 0, "k": rng.choice([0, 2, 4, "auto"])}
        else:
            body |= {"temperature": 0.8, "top_p": 0.9, "seed": rng.randrange(1000), "verifier": "match"}
        if rng.random() < 0.2:
            body["stop"] = ["\n\n"]
        pool[f"r{number}"] = body
    return pool


def as_asked(body: Body, *, stream: bool) -> Body:
    """A batch line as a request of /v1/completions."""
    own = {name: body[name] for name in ("k", "verifier") if name in body}
    same = {name: body[name] for name in ("prompt", "temperature", "top_p", "seed", "stop") if name in body}
    return {**same, "max_tokens": body["max_new_tokens"], "stream": stream, "mxspec": own}


def spoil(data: bytes, rng: random.Random) -> bytes:
    """A request body that the server must refuse."""
    mistakes: list[Body] = [{"k": 1}, {"prompt": []}, {"max_tokens": -1}, {"model": "none"}, {"mxspec": {"k": 999}}]
    if rng.random() < 0.3:
        return data[: rng.randrange(len(data) - 1)]
    return json.dumps(json.loads(data) | rng.choice(mistakes)).encode()


class Client:
    """Asks one request after another, each on a connection of its own."""

    def __init__(self, address: tuple[str, int], counts: Counts, seed: int) -> None:
        self._address = address
        self._counts = counts
        self._rng = random.Random(seed)
        self.written: list[ReadAnswer] = []

    async def ask(self, key: str, body: Body) -> None:
        """Send one request, and behave well, slowly or badly."""
        rng, counts = self._rng, self._counts
        counts.asked += 1
        way = rng.random()
        data = json.dumps(as_asked(body, stream=rng.random() < 0.5)).encode()
        try:
            async with asyncio.timeout(PATIENCE):
                if way < CANCELLED:
                    await self._leave(data)
                    counts.cancelled += 1
                elif way < CANCELLED + MALFORMED:
                    await self._mistake(spoil(data, rng))
                else:
                    await self._read(key, data, slow=way < CANCELLED + MALFORMED + SLOW)
        except TimeoutError:
            counts.stuck += 1

    async def _leave(self, data: bytes) -> None:
        async with self._sent(data) as reader:
            try:
                async with asyncio.timeout(self._rng.random() / 10):
                    await reader.read(1000)
            except TimeoutError:
                pass

    async def _mistake(self, data: bytes) -> None:
        while True:
            async with self._sent(data) as reader:
                status, body = _parse(await reader.read())
            if status != 503:
                break
            self._counts.later += 1
            await asyncio.sleep(0.1)
        self._counts.malformed += status in (400, 404)
        if status not in (400, 404) or "error" not in json.loads(body):
            self._counts.wrong.append(f"{data[:200]!r} was answered with {status}")

    async def _read(self, key: str, data: bytes, *, slow: bool) -> None:
        while True:
            began = time.perf_counter()
            async with self._sent(data, slow=slow) as reader:
                pieces = [piece async for piece in _pieces(reader, slow)]
            status, body = _parse(b"".join(pieces))
            if status != 503:
                break
            self._counts.later += 1
            await asyncio.sleep(0.1)
        if status != 200:
            self._counts.wrong.append(f"{key} was answered with {status}: {body[:200]!r}")
            return
        if not slow:
            self._counts.seconds.append(time.perf_counter() - began)
        self._counts.whole += 1
        self.written.append(_written(key, body))

    @asynccontextmanager
    async def _sent(self, data: bytes, *, slow: bool = False) -> AsyncIterator[asyncio.StreamReader]:
        connection = socket.socket()
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, self._address)
        reader, writer = await asyncio.open_connection(sock=connection, limit=4096 if slow else 1 << 16)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            writer.write(head.encode() + data)
            await writer.drain()
            yield reader
        finally:
            writer.close()


async def _pieces(reader: asyncio.StreamReader, slow: bool) -> AsyncIterator[bytes]:
    while piece := await reader.read(SLOW_BYTES if slow else 1 << 16):
        yield piece
        if slow:
            await asyncio.sleep(SLOW_SECONDS)


def _parse(answer: bytes) -> tuple[int, bytes]:
    """Status and body of an answer; chunks are joined."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head.lower():
        return status, rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return status, body


def _written(key: str, body: bytes) -> ReadAnswer:
    """The text of an answer, whole or in a stream."""
    if not body.startswith(b"data: "):
        choice = json.loads(body)["choices"][0]
        return ReadAnswer(key, choice["text"], choice["mxspec"]["finish_reason"])
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    if events[-1] != b"[DONE]":
        return ReadAnswer(key, "", f"the stream ends with {events[-1][:200]!r}")
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    return ReadAnswer(key, "".join(choice["text"] for choice in choices), choices[-1]["mxspec"]["finish_reason"])


async def load(address: tuple[str, int], process: int, pool: dict[str, Body], requests: int, clients: int) -> Any:
    """The counts, the answers, and the seconds of all requests."""
    counts = Counts()
    began = time.perf_counter()
    keys = iter(random.Random(1).choices(list(pool), k=requests))

    async def work(client: Client) -> None:
        for key in keys:
            await client.ask(key, pool[key])

    async def watch() -> None:
        while True:
            counts.memory.append((time.perf_counter() - began, anonymous_bytes(process)))
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    askers = [Client(address, counts, seed) for seed in range(clients)]
    await asyncio.gather(*map(work, askers))
    watching.cancel()
    return counts, [one for asker in askers for one in asker.written], time.perf_counter() - began


def expected_texts(bundle: Path, pool: dict[str, Body], used: set[str]) -> dict[str, tuple[str, str]]:
    """Text and finish reason of each request, as specrun writes it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines.jsonl")
        answers = Path(folder, "answers.jsonl")
        lines.write_text("".join(json.dumps({"key": key, **pool[key]}) + "\n" for key in sorted(used)))
        command = [sys.executable, "-m", "mxspec.runtime.start", str(bundle), "--raw", "--prompts", str(lines)]
        subprocess.run([*command, "--out", str(answers)], check=True, capture_output=True)
        found = map(json.loads, answers.read_text().splitlines())
        return {one["key"]: (one["text"], one["finish_reason"]) for one in found}


def wait_until_idle(address: tuple[str, int]) -> float:
    """Texts that still run or wait after all clients have gone, and after at most 10 seconds."""
    deadline = time.monotonic() + 10
    while True:
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        left = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("mxspec:num_requests_"))
        if left == 0 or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--requests", default=2000, show_default=True)
@click.option("--clients", default=16, show_default=True)
@click.option("--slots", default=8, show_default=True)
@click.option("--queue", default=64, show_default=True)
@click.option("--distinct", default=400, show_default=True, help="Different requests, drawn from by all clients.")
@click.option("--longest", default=200, show_default=True, help="Characters of a prompt and tokens of a text together.")
@record_options
def main(
    bundle: Path,
    requests: int,
    clients: int,
    slots: int,
    queue: int,
    distinct: int,
    longest: int,
    run: Run,
) -> None:
    """Load a server, and compare what it answers."""
    with specserve(bundle, "--slots", slots, "--queue", queue) as server:
        address = server.address.host, server.address.port
        pool = request_pool(distinct, 7, longest)
        counts, written, seconds = asyncio.run(load(address, server.process.pid, pool, requests, clients))
        left = wait_until_idle(address)
    expected = expected_texts(bundle, pool, {one.key for one in written})
    counts.wrong += [
        f"{one.key}: {(one.text, one.reason)!r}, specrun: {expected[one.key]!r}"
        for one in written
        if (one.text, one.reason) != expected[one.key]
    ]
    result = LoadResult(
        **summary(counts, written, pool),
        seconds=seconds,
        left_running=left,
        bundle=bundle.name,
        clients=clients,
        slots=slots,
        queue=queue,
        distinct=distinct,
        exit_code=server.process.returncode,
        said=tuple(server.said.splitlines()),
    )
    run.finish(result)
    if not result.passed:
        raise CheckFailed(f"{result.wrong} answers are wrong, {result.stuck} stuck, {left:g} left running")


def summary(counts: Counts, written: list[ReadAnswer], pool: dict[str, Body]) -> dict[str, Any]:
    """The counts under the names of the result's fields."""
    times = counts.seconds
    kinds = Counter("greedy" if pool[one.key]["temperature"] == 0 else "sampled" for one in written)
    return {
        "requests": counts.asked,
        "whole": counts.whole,
        "compared_greedy": kinds["greedy"],
        "compared_sampled": kinds["sampled"],
        "cancelled": counts.cancelled,
        "malformed": counts.malformed,
        "asked_again": counts.later,
        "wrong": len(counts.wrong),
        "wrong_ones": counts.wrong[:10],
        "stuck": counts.stuck,
        "median_seconds": median(times) if times else None,
        "p95_seconds": percentile(times, 95) if times else None,
        "anonymous_bytes": counts.memory,
    }


if __name__ == "__main__":
    main()
