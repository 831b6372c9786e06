"""Greedy answers of both programs: of the peer as its users run it, llama-server, and of our engine."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bench.llama_cpp.files import CONTEXT
from mxspec.evaluate.bench.serve.server import Address, end, wait_ready
from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.request import Request

ANSWER_SECONDS = 600.0
GREEDY = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
K = int | Literal["auto"]  # tokens drafted in a round; only mxspec has "auto", chosen for each round by cost


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer to one prompt."""

    tokens: tuple[int, ...]
    seconds: float  # from the first token to the last one
    drafted: int = 0
    accepted: int = 0


class Writer(Protocol):
    """An open model."""

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer: ...


class Program(Protocol):
    """A model with or without a draft in one of the two programs; it is open only while it is timed."""

    def open(self) -> AbstractContextManager[Writer]: ...


# --- ours ---


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundle to open; K = 0 is plain decoding."""

    bundle: Path
    threads: int
    k: K = 0

    @contextmanager
    def open(self) -> Iterator[Opened]:
        with Engine(self.bundle, slots=1, threads=self.threads) as engine:
            yield Opened(engine, self.k)


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that writes at one K."""

    engine: Engine
    k: K

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        """An answer, timed by the caller: from the first token, which reading the prompt gives, to the last one."""
        request = Request(
            prompt=list(prompt),
            temperature=0,
            k=self.k,
            max_new_tokens=new_tokens,
            drafter="none" if self.k == 0 else "model",
            ignore_eos=True,
        )
        tokens: list[int] = []
        drafted = accepted = 0
        began = ended = 0.0
        for event in self.engine.submit(request):
            if isinstance(event, Token):
                ended = time.perf_counter()
                began = began or ended
                tokens.append(event.id)
            elif isinstance(event, Round):
                drafted += event.drafted
                accepted += event.accepted
        return Answer(tuple(tokens), ended - began, drafted, accepted)


# --- the peer ---


@dataclass(frozen=True, slots=True)
class Server:
    """A server to start; `k` tokens are drafted in a round."""

    binaries: Path
    model: Path
    threads: int
    log: Path
    draft: Path | None = None
    k: int = 0
    slots: int = 1  # texts at a time

    def command(self, port: int) -> list[str]:
        """The command line; no prompt is kept from one request to the next."""
        threads = str(self.threads)
        place = ["--host", "127.0.0.1", "--port", str(port), "--offline", "--no-ui", "--cache-ram", "0"]
        target = ["-m", str(self.model), "-c", str(self.slots * CONTEXT), "-np", str(self.slots)]
        target += ["-t", threads, "-tb", threads]
        draft = ["-md", str(self.draft), "-td", threads, "-tbd", threads, "--spec-type", "draft-simple"]
        drafted = [*draft, "--spec-draft-n-max", str(self.k)] if self.draft else []
        return [str(self.binaries / "llama-server"), *place, *target, *drafted]

    @contextmanager
    def open(self) -> Iterator[Running]:
        """Start the server and wait until it is ready. Raises MxspecError if it ends or does not become ready."""
        port = _free_port()
        with self.log.open("wb") as log:
            process = subprocess.Popen(self.command(port), stdout=log, stderr=log)
        try:
            running = Running(port)
            wait_ready(running.address, process, "llama-server", self._last_words, f": see {self.log}")
            yield running
        finally:
            end(process)

    def _last_words(self) -> str:
        said = self.log.read_text(errors="replace").strip().splitlines()
        return said[-1] if said else ""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    port: int

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        """An answer, timed by the server: from the first token, which reading the prompt gives, to the last one."""
        asked = {"prompt": list(prompt), "n_predict": new_tokens, "ignore_eos": True, "cache_prompt": False}
        found = self.post("/completion", {**asked, **GREEDY, "return_tokens": True})
        timings = found["timings"]
        return Answer(
            tuple(found["tokens"]),
            timings["predicted_ms"] / 1e3,
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
        )

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        return list(self.post("/tokenize", {"content": text, "add_special": True})["tokens"])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to a request; raises MxspecError if the server refuses, ends or gives no JSON."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return json.load(response)
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            raise MxspecError(f"llama-server: {path} failed: {type(error).__name__}: {error}") from None

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
