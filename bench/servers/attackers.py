"""What attacks have in common: requests one after another on threads, and a stream whose gaps are timed."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mxspec.evaluate.bench.serve.clients import hear, of_specserve
from mxspec.evaluate.bench.serve.server import Address
from mxspec.formats.errors import MxspecError

PATIENCE = 120.0
CHAT = "/v1/chat/completions"
PROMPT = list(range(40, 60))  # token ids
STREAM_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """The status of an answer (0 if there was none), its body, and the seconds that it took."""

    status: int
    body: bytes
    seconds: float


def post(address: Address, path: str, body: bytes) -> Answer:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE)
    began = time.perf_counter()
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), time.perf_counter() - began)
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, repr(error).encode(), time.perf_counter() - began)
    finally:
        connection.close()


def post_all(address: Address, path: str, bodies: Iterable[bytes], clients: int) -> list[Answer]:
    """Send requests of several clients, each of which sends the next one once it is answered."""
    with ThreadPoolExecutor(clients) as threads:
        return list(threads.map(lambda body: post(address, path, body), bodies))


class Beside:
    """One stream of text after another, and one good request after another, while something else goes on."""

    def __init__(self, address: Address, good: Callable[[int], bytes]) -> None:
        self._address = address
        self._good = good
        self._over = threading.Event()
        self.gaps: list[float] = []  # seconds between pieces of a stream
        self.answers: list[Answer] = []  # to good requests
        self.errors: list[str] = []  # that ended a stream

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until the context ends."""
        threads = [threading.Thread(target=work) for work in (self._stream, self._ask)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _stream(self) -> None:
        writer = of_specserve(self._address)
        while not self._over.is_set():
            try:
                self.gaps += [gap for _, gap in hear(writer, PROMPT, STREAM_TOKENS).gaps]
            except MxspecError as error:
                self.errors.append(str(error))

    def _ask(self) -> None:
        number = 0
        while not self._over.is_set():
            self.answers.append(post(self._address, CHAT, self._good(number)))
            number += 1


def schema_request(number: int) -> bytes:
    """A good chat with a small schema, a new one for each number."""
    properties = {"name": {"type": "string", "maxLength": 8}, f"field{number}": {"type": "integer", "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    body = {
        "messages": [{"role": "user", "content": "Name something, and count it."}],
        "max_tokens": 32,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}},
    }
    return json.dumps(body).encode()
