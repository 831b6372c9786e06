"""specbench serve: clients of the server beside clients of the engine, and what texts notice of a long prompt."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
import numpy as np

from mxspec.evaluate.bench.harness import median, median_ratio, percentile, trials_of
from mxspec.evaluate.bench.options import bundle_argument, new_tokens_option, repetitions_option
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS, prompts_of, read_tokens
from mxspec.evaluate.bench.serve.clients import (
    ANSWER_SECONDS,
    Heard,
    Writer,
    ask_at_once,
    hear,
    in_process,
    of_specserve,
    tokens_per_second,
)
from mxspec.evaluate.bench.serve.result import ClientsRow, Joining, ServeResult
from mxspec.evaluate.bench.serve.server import Specserve, specserve
from mxspec.evaluate.options import Progress, Run, run_options
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command
from mxspec.runtime.engine import Engine

CLIENTS = (1, 8)
ANSWERS = 2  # that each client requests, one after another
JOINING_TOKENS = 1000
JOINED_TOKENS = 16  # that the joining client requests
BEFORE_TOKENS = 24  # that each text has before the client joins
WARM_TOKENS = 32
STARTS = 3

Asked = tuple[int, str]  # number of clients, and the writer that they ask


@click.command("serve", cls=Command)
@bundle_argument
@click.option(
    "--text", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.  [default: random tokens]"
)
@new_tokens_option(64)
@repetitions_option(3)
@run_options
def bench_serve(bundle: Path, text: Path | None, new_tokens: int, repetitions: int, run: Run) -> None:
    """Time 1 and 8 clients of specserve beside as many of the engine in this process, and a long prompt that joins.

    Also says how long the server takes to be ready.
    """
    opened = Bundle.open(bundle)
    context, needed = opened.manifest.models["target"].context_length, context_needed(new_tokens)
    if context < needed:
        raise MxspecError(f"bundle {bundle}: its context is {context:,} tokens, but serve takes {needed:,}")
    with run.progress() as progress:
        result = measure(
            bundle,
            read_tokens(bundle, text, max(CLIENTS) * ANSWERS),
            new_tokens,
            repetitions,
            run.threads,
            progress,
        )
    run.finish(result)


def measure(
    bundle: Path, text: Sequence[int], new_tokens: int, repetitions: int, threads: int | None, progress: Progress
) -> ServeResult:
    """`text` is token ids that prompts are cut from. Server and engine alternate; one idles while the other works."""
    slots = max(CLIENTS) + 1
    ready = []
    for _ in range(STARTS - 1):
        progress("starting the server")
        with _served(bundle, slots, threads) as server:
            ready.append(server.ready_seconds)
    with Engine(bundle, slots=slots, threads=threads) as engine, _served(bundle, slots, threads) as server:
        ready.append(server.ready_seconds)
        writers: dict[str, Writer] = {"engine": in_process(engine), "server": of_specserve(server.address)}
        prompts = prompts_of(text, max(CLIENTS) * ANSWERS)
        for writer in writers.values():  # reads the weights for the first time, and learns costs
            ask_at_once(writer, [[prompt] for prompt in prompts[: max(CLIENTS)]], WARM_TOKENS)

        def speed(asked: Asked) -> float:
            clients, name = asked
            shares = [prompts[i * ANSWERS : (i + 1) * ANSWERS] for i in range(clients)]
            return tokens_per_second(ask_at_once(writers[name], shares, new_tokens), new_tokens)

        cases = [(clients, name) for clients in CLIENTS for name in writers]
        label = "{0[0]} clients of the {0[1]}".format
        speeds = trials_of(cases, speed, repetitions, progress, label=label, both_ways=True)
        joins = []
        for repetition in range(repetitions):
            progress(f"repetition {repetition + 1} of {repetitions}: a long prompt joins")
            joins.append(_join(writers["server"], prompts[: max(CLIENTS)], _long_prompt(text, repetition), new_tokens))
    before, during, first = zip(*joins, strict=True)
    return ServeResult(
        bundle=bundle.name,
        threads=ops.threads() if threads is None else threads,
        new_tokens=new_tokens,
        ready_seconds=median(ready),
        trials_ready=tuple(ready),
        rows=tuple(_row(clients, speeds) for clients in CLIENTS),
        joining=Joining(
            prompt_tokens=JOINING_TOKENS,
            before_seconds=median(before),
            during_seconds=median(during),
            ratio=median_ratio(during, before),
            first_token_seconds=median(first),
            trials_before=before,
            trials_during=during,
            trials_first_token=first,
        ),
    )


def context_needed(new_tokens: int) -> int:
    """The context that a bundle must have, in tokens."""
    return max(JOINING_TOKENS + JOINED_TOKENS, PROMPT_TOKENS + 2 * new_tokens)


def _served(bundle: Path, slots: int, threads: int | None) -> AbstractContextManager[Specserve]:
    return specserve(bundle, "--slots", slots, *(() if threads is None else ("--threads", threads)))


def _long_prompt(text: Sequence[int], number: int) -> list[int]:
    """A shuffled prompt, of which no cache holds a prefix."""
    rng = np.random.default_rng(number)
    return [int(token) for token in rng.permutation(np.resize(text, JOINING_TOKENS))]


def _row(clients: int, speeds: Mapping[Asked, Sequence[float]]) -> ClientsRow:
    engine, server = speeds[clients, "engine"], speeds[clients, "server"]
    return ClientsRow(
        clients=clients,
        engine_tokens_per_second=median(engine),
        server_tokens_per_second=median(server),
        ratio=median_ratio(server, engine),
        trials_engine_tokens_per_second=tuple(engine),
        trials_server_tokens_per_second=tuple(server),
    )


def _join(
    writer: Writer, prompts: Sequence[Sequence[int]], long_prompt: Sequence[int], new_tokens: int
) -> tuple[float, float, float]:
    """95th percentiles of seconds to the next token, before and during a long prompt; and seconds to its first token.

    The texts are plain, so that each piece is one token.
    """
    found: list[list[Heard]] = []
    pieces, left, counting, amid = min(BEFORE_TOKENS, new_tokens), len(prompts), threading.Lock(), threading.Event()

    def announcing(prompt: Sequence[int], new_tokens: int, plain: bool) -> Iterator[object]:
        """Sets `amid` when each text has `pieces` pieces."""
        nonlocal left
        for number, piece in enumerate(writer(prompt, new_tokens, plain), 1):
            if number == pieces:
                with counting:
                    left -= 1
                    if left == 0:
                        amid.set()
            yield piece

    texts = threading.Thread(
        target=lambda: found.extend(ask_at_once(announcing, [[p] for p in prompts], 2 * new_tokens, plain=True))
    )
    texts.start()
    amid.wait(ANSWER_SECONDS)
    joined = hear(writer, long_prompt, JOINED_TOKENS, plain=True)
    texts.join()
    answers = [answer for client in found for answer in client]
    if not answers:
        raise MxspecError("the server wrote no text that a long prompt could join")
    all_write = max(answer.pieces[0] for answer in answers)
    first = joined.asked + joined.first_seconds
    gaps = [gap for answer in answers for gap in answer.gaps]
    before = [seconds for at, seconds in gaps if at - seconds >= all_write and at <= joined.asked]
    during = [seconds for at, seconds in gaps if at > joined.asked and at - seconds < first]
    if not (before and during):
        raise MxspecError("--new-tokens: the texts had ended before a long prompt could join them; give more")
    return percentile(before, 95), percentile(during, 95), joined.first_seconds
