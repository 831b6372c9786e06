"""A server's life: its models are loaded on a thread, requests under way are counted, and all ends in order."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.runtime.engine import Engine
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.guarded.process_quota import GivenUpError
from mxspec.runtime.memory import give_back
from mxspec.runtime.settings import TypedControlTokens
from mxspec.serve.engines.flight import AbortReason, Flight
from mxspec.serve.engines.metrics import Metrics
from mxspec.serve.engines.models import Served, ServedModel
from mxspec.serve.engines.token_texts import TokenTexts
from mxspec.serve.http.errors import SERVER, ApiError, busy, wrong
from mxspec.serve.http.limits import Limits

PREPARING = 4  # threads that parse requests, and tokenise
IDLE_SECONDS = 1.0  # without a request, after which free memory goes back to the system

Result = TypeVar("Result")
State = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Result]):
    """A request that was understood: the grammar to be tried, and what then begins its texts."""

    served: Served
    grammar: Grammar | None
    names: Mapping[str, str]  # of settings that the request has under another name
    begin: Callable[[], Result]


@dataclass(eq=False)
class Service:
    """Some bundles, made ready to answer requests; all its methods but `load` belong to the event loop."""

    models: Sequence[ServedModel]
    slots: int = 8
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    shared_suffixes: int = 0  # bytes for each model
    cache_memory: int | None = None  # most bytes of each model's key-value caches
    idle_seconds: float = 600  # without a request, until past beginnings are dropped; 0: never
    prompt_cache: Path | None = None  # a folder that keeps what slots hold from one server to the next
    warn: Callable[[str], None] = lambda line: None
    aliases: Mapping[str, str] = field(default_factory=dict)  # further ids of models, with their own
    typed_control_tokens: TypedControlTokens = "control"
    on_loaded: Callable[[], None] = lambda: None  # called on the event loop, also after a failure
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.state: State = "loading"
        self.error: Exception | None = None  # why loading failed
        self.served: dict[str, Served] = {}
        self.flights: set[Flight] = set()
        self._room = threading.Lock()  # guards `under_way`: requests are prepared on threads
        self._idle: list[asyncio.TimerHandle] = []
        self._preparers = ThreadPoolExecutor(PREPARING, "mxspec-prepare")
        # Each thread waits for a process that tries a grammar, or for one that is compiled: nobody else waits for it.
        self._triers = ThreadPoolExecutor(self.slots + self.limits.queue, "mxspec-grammar")

    # --- its life ---

    async def start(self) -> None:
        """Load all models, unless they are loaded, and call `on_loaded`; `error` says why one cannot be loaded."""
        if self.state != "loading":
            return
        try:
            await asyncio.to_thread(self.load)
        except Exception as error:
            self.error, self.state = error, "failed"
        self.on_loaded()

    def load(self) -> None:
        """Open the engines, one after the other; raises MxspecError."""
        for model in self.models:
            slots = self.slots if model.kind == "target" else 1
            limit = slots + self.limits.queue
            engine = Engine(
                model.bundle.path,
                slots=slots,
                threads=self.threads,
                queue=2 * limit,  # twice, because cancelled texts leave the queue later than this count
                shared_suffixes=self.shared_suffixes,
                cache_memory=self.cache_memory,
                model=model.kind,
            )
            if self.prompt_cache is not None:
                for line in engine.load_slots(self.prompt_cache / _folder_name(model.id)):
                    self.warn(line)
            with suppress(GenerationError):  # llguidance is not installed, or cannot read the tokenizer
                engine.trial.warm()
            if engine.template is not None:
                engine.template_for(self.typed_control_tokens)  # so that no request waits for it
            scorer = ThreadPoolExecutor(1, "mxspec-score")
            texts = TokenTexts(engine.tokenizer)
            self.served[model.id] = Served(model, engine, limit, int(time.time()), texts, scorer)
            self.metrics.add_model(self.served[model.id])
        gc.collect()
        gc.freeze()  # what stays need not be looked through again and again, for which all texts wait
        if self.state == "loading":
            self.state = "ready"

    async def drain(self, grace: float, hurry: Callable[[], bool] = lambda: False) -> tuple[int, int]:
        """Refuse new requests; the numbers of requests that finished, and of those aborted after `grace` seconds.

        `hurry` is called all the while; once it is true, no time is left.
        """
        self.state = "draining"
        begun = set(self.flights)
        deadline = time.monotonic() + grace
        while self.flights and time.monotonic() < deadline and not hurry():
            await asyncio.sleep(0.02)
        cut = set(self.flights)
        for flight in cut:
            flight.abort(AbortReason.SHUTDOWN)
        deadline = time.monotonic() + self.limits.stall_seconds
        while self.flights and time.monotonic() < deadline and not hurry():  # which still answer their clients
            await asyncio.sleep(0.02)
        return len(begun - cut), len(cut)

    def close(self) -> None:
        """End the engines; waits for the step that runs."""
        self._preparers.shutdown(wait=False, cancel_futures=True)
        self._triers.shutdown(wait=False, cancel_futures=True)
        for served in self.served.values():
            served.scorer.shutdown(wait=False, cancel_futures=True)
            if self.prompt_cache is not None:
                try:
                    served.engine.save_slots(self.prompt_cache / _folder_name(served.id))
                except (MxspecError, OSError) as error:
                    self.warn(str(error))
            served.engine.close()

    # --- for requests ---

    def require_ready(self) -> None:
        """Raise ApiError 503 while models are loaded, and when the server is about to end."""
        if self.state != "ready":
            raise ApiError(503, f"server: {self.state}", kind=SERVER, code=self.state, retry_after=1)

    def find(self, name: str | None) -> Served:
        """The model with this id, the first one without a name; raises ApiError 404."""
        if name is None:
            return next(iter(self.served.values()))
        name = self.aliases.get(name, name)
        if name not in self.served:
            known = ", ".join(self.served)
            raise ApiError(
                404, f"model: got {name[:200]!r}, expected one of {known}", param="model", code="model_not_found"
            )
        return self.served[name]

    @contextmanager
    def flight(self) -> Iterator[Flight]:
        """A request under way; raises ApiError 503 if the models' queues take no more."""
        self.require_ready()
        if len(self.flights) >= sum(served.limit for served in self.served.values()):
            self.metrics.refuse()
            raise busy(f"server: {len(self.flights)} requests are running, the maximum; try again later")
        flight = Flight(self.limits.time_seconds)
        self.flights.add(flight)
        try:
            with flight:
                yield flight
        finally:
            self.flights.discard(flight)
            if flight.served is not None:
                with self._room:
                    flight.served.under_way -= flight.texts
            self._give_back_once_idle()

    def _give_back_once_idle(self) -> None:
        for timer in self._idle:
            timer.cancel()
        later = asyncio.get_running_loop().call_later
        self._idle = [] if self.flights else [later(IDLE_SECONDS, self._start, give_back)]
        if not self.flights and self.idle_seconds:
            self._idle.append(later(self.idle_seconds, self._start, self._drop_idle))

    def _start(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # closed meanwhile
            self._preparers.submit(work)

    def _drop_idle(self) -> None:
        for served in self.served.values():
            with suppress(GenerationError):  # closed, or failed
                served.engine.drop_idle()
        give_back()

    def admit(self, flight: Flight, served: Served, texts: int) -> None:
        """Count `texts` more texts as under way until the flight ends, from any thread; raises ApiError 503 or 400."""
        if texts > served.limit:
            raise wrong("n", f"got {texts} texts in a request, expected at most {served.limit}")
        with self._room:
            if served.under_way + texts > served.limit:
                self.metrics.refuse()
                raise busy(f"model {served.id}: {served.under_way} texts run or wait, expected at most {served.limit}")
            served.under_way += texts
            flight.served, flight.texts = served, texts

    async def prepare(self, work: Callable[[], Result]) -> Result:
        """Do work that would block the event loop on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._preparers, work)

    async def begin(self, flight: Flight, prepared: Prepared[Result]) -> Result:
        """Begin the texts of a request, on a thread, once its grammar was tried; gives up if the flight is aborted."""
        if prepared.grammar is None:
            return await self.prepare(prepared.begin)

        def tried() -> Result:
            assert prepared.grammar is not None
            prepared.served.engine.trial.check(prepared.grammar, lambda: flight.abort_reason is not None)
            return prepared.begin()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._triers, tried)
        except GivenUpError:
            flight.raise_if_aborted()
            raise


def _folder_name(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()[:16]
