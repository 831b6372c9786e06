"""Many clients of one server, some of which disconnect, make mistakes or read slowly: is any answer wrong or lost?

    python -m bench serve-load build/demo.bundle --record build/records/serve_load.json

specserve runs in a process of its own. Clients ask one request after another over the loopback address: a tenth close
the connection during the answer, a tenth send an invalid request, a tenth read a few bytes at a time. Afterwards every
answer is compared with the one that `specrun --prompts` writes for the same settings: greedy answers, and sampled ones
that a seed determines; and the server's metrics with what was sent and read. Its anonymous memory is read all the time.
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
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
from prometheus_client.parser import text_string_to_metric_families

from bench.measurement import measurement
from bench.results import LoadResult, Metric
from mxspec.evaluate.bench.harness import median, percentile
from mxspec.evaluate.bench.machine import anonymous_bytes
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.evaluate.bench.serve.server import Address, specserve
from mxspec.runtime.events import FinishReason
from mxspec.serve.texts.choice_text import finish_reason

ROUTE = "/v1/completions"
PIECES = ("def ", "class ", "import os\n", "for i in range(", "return ", "x = [", "\n    ", "self.", "print(")
CANCELLED, MALFORMED, SLOW = 0.1, 0.1, 0.1  # shares of the requests
PATIENCE = 120.0  # a request without an answer for these seconds counts as stuck
SLOW_BYTES, SLOW_SECONDS = 256, 0.002  # a slow reader reads so few bytes at a time, and then sleeps
Body = dict[str, Any]


@dataclass(slots=True)
class Counts:
    """What became of the requests."""

    asked: int = 0
    sent: int = 0  # those that were asked again, too
    whole: int = 0
    refused: Counter[int] = field(default_factory=Counter)  # malformed requests, by status
    left_tokens: int = 0  # the most tokens that were written for clients that left
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
    tokens: int


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
    same: Body = {name: body[name] for name in ("prompt", "temperature", "top_p", "seed", "stop") if name in body}
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
                    counts.left_tokens += body["max_new_tokens"]
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
        self._counts.refused[status] += 1
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
        head = f"POST {ROUTE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            writer.write(head.encode() + data)
            self._counts.sent += 1
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
        found = json.loads(body)
        (choice,) = found["choices"]
        return ReadAnswer(key, choice["text"], choice["mxspec"]["finish_reason"], found["timings"]["predicted_n"])
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    if events[-1] != b"[DONE]":
        return ReadAnswer(key, "", f"the stream ends with {events[-1][:200]!r}", 0)
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    last = chunks[-1]
    return ReadAnswer(key, text, last["choices"][0]["mxspec"]["finish_reason"], last["timings"]["predicted_n"])


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


def wait_until_idle(server: Address, sent: int) -> Samples:
    """The metrics once no text runs or waits and all requests have ended, or after 10 seconds."""
    deadline = time.monotonic() + 10
    while True:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = Samples(sample for family in text_string_to_metric_families(text) for sample in family.samples)
        if (found.left == 0 and found.total("http_responses", route=ROUTE) >= sent) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


class Samples(list[Any]):
    """What /metrics said."""

    @property
    def left(self) -> float:
        """Number of texts that run and wait."""
        return float(sum(sample.value for sample in self if sample.name.startswith("mxspec:num_requests_")))

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter's samples with these labels."""
        named = [sample for sample in self if sample.name == f"mxspec:{name}_total"]
        return float(sum(sample.value for sample in named if labels.items() <= sample.labels.items()))


def compared_metrics(found: Samples, counts: Counts, written: list[ReadAnswer]) -> tuple[Metric, ...]:
    """Each metric beside what clients know: all but what became of requests whose clients left."""
    left = counts.cancelled
    ends = Counter(finish_reason(cast(FinishReason, one.reason)) for one in written)
    tokens = sum(one.tokens for one in written)

    def answers(status: int, least: int, more: int = 0) -> Metric:
        value = found.total("http_responses", route=ROUTE, status=str(status))
        return Metric(name=f"answers {status}", least=least, found=value, most=least + more)

    def texts(reason: str, least: int) -> Metric:
        value = found.total("request_success", finished_reason=reason)
        return Metric(name=f"texts {reason}", least=least, found=value, most=least + left)

    return (
        Metric(name="answers", least=counts.sent, found=found.total("http_responses", route=ROUTE), most=counts.sent),
        answers(200, counts.whole, left),
        *(answers(status, number) for status, number in sorted(counts.refused.items())),
        answers(503, counts.later, left),
        Metric(name="refused", least=counts.later, found=found.total("requests_refused"), most=counts.later + left),
        *(texts(reason, ends[reason]) for reason in ("stop", "length", "abort")),
        Metric(
            name="tokens",
            least=tokens,
            found=found.total("generation_tokens"),
            most=tokens + counts.left_tokens,
        ),
    )


@measurement
@bundle_argument
@click.option("--requests", default=2000, show_default=True)
@click.option("--clients", default=16, show_default=True)
@click.option("--slots", default=8, show_default=True)
@click.option("--queue", default=64, show_default=True)
@click.option("--distinct", default=400, show_default=True, help="Different requests, drawn from by all clients.")
@click.option("--longest", default=200, show_default=True, help="Characters of a prompt and tokens of a text together.")
def main(
    bundle: Path,
    requests: int,
    clients: int,
    slots: int,
    queue: int,
    distinct: int,
    longest: int,
) -> LoadResult:
    """Load a server, and compare what it answers."""
    with specserve(bundle, "--slots", slots, "--queue", queue) as server:
        address = server.address.host, server.address.port
        pool = request_pool(distinct, 7, longest)
        counts, written, seconds = asyncio.run(load(address, server.process.pid, pool, requests, clients))
        samples = wait_until_idle(server.address, counts.sent)
    expected = expected_texts(bundle, pool, {one.key for one in written})
    counts.wrong += [
        f"{one.key}: {(one.text, one.reason)!r}, specrun: {expected[one.key]!r}"
        for one in written
        if (one.text, one.reason) != expected[one.key]
    ]
    return LoadResult(
        **summary(counts, written, pool),
        seconds=seconds,
        left_running=samples.left,
        metrics=compared_metrics(samples, counts, written),
        bundle=bundle.name,
        clients=clients,
        slots=slots,
        queue=queue,
        distinct=distinct,
        exit_code=server.process.returncode,
        said=tuple(server.said.splitlines()),
    )


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
