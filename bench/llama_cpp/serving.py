"""llama-server against specserve: many clients at once, each of which requests one greedy text after another.

A server is open only while it is timed, and the servers alternate within each repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import click

from bench.llama_cpp.answers import GREEDY, Server
from bench.llama_cpp.build import PACKAGE, Peer, work_option
from bench.llama_cpp.files import (
    F16,
    Packed,
    Pair,
    bundle,
    gguf_file,
    grown_pair,
    held_out_text,
    pair_options,
    published_files,
    published_options,
    require_both,
)
from bench.llama_cpp.result import OURS, PEER
from bench.measurement import measurement
from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.evaluate.bench.harness import median, median_ratio, trials_of
from mxspec.evaluate.bench.options import new_tokens_option, repetitions_option
from mxspec.evaluate.bench.prompts import prompts_of, read_tokens
from mxspec.evaluate.bench.serve.clients import Writer, ask_at_once, of_specserve, streamed, tokens_per_second
from mxspec.evaluate.bench.serve.server import specserve
from mxspec.evaluate.options import Progress
from mxspec.evaluate.result import Column, Result, Sheet, Value

TOOLS = ("llama-server", "llama-quantize")
CLIENTS = 8
ANSWERS = 2  # of each client
PEER_TARGET, PEER_K = "Q6_K", 3  # bits a weight as ours; the peer's own default of K
WHOLE = Packed("fp16", "int16")
OUR_TARGETS = (Packed("mxfp6_e3m2", "int16"), Packed("mxfp6_e2m3", "int8"))
WARM_TOKENS = 16

Open = Callable[[], AbstractContextManager[Writer]]
Name = tuple[str, str]  # program and target


class Row(Value):
    """One server."""

    program: str
    target: str
    tokens_per_second: float  # of all clients; median over the repetitions
    trials_tokens_per_second: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.program} {self.target}"

    def over(self, other: Row) -> float:
        """How many times as fast: the median over the repetitions."""
        return median_ratio(self.trials_tokens_per_second, other.trials_tokens_per_second)


class ServingResult(Result):
    """Servers of both programs on one pair or model, with as many clients as slots."""

    kind: ClassVar[str] = "llama-cpp-serving"
    faster_if_more = ("tokens_per_second",)

    peer: str  # its package
    threads: int
    clients: int
    answers: int  # of each client
    prompt_tokens: int
    new_tokens: int
    rows: tuple[Row, ...]

    def sheets(self) -> Sequence[Sheet]:
        peers = [row for row in self.rows if row.program == PEER]
        columns = (Column("server"), Column("tok/s", ".1f"), *(Column(f"over {row.target}") for row in peers))
        rows = tuple(
            (
                row.name,
                row.tokens_per_second,
                *(f"{row.over(peer):.2f} x" if row.program == OURS else None for peer in peers),
            )
            for row in self.rows
        )
        title = (
            f"{self.clients} clients, {self.answers} greedy texts of each one after the other, {self.new_tokens} new "
            f"tokens after {self.prompt_tokens}, {self.threads} threads"
        )
        return [Sheet(title, columns, rows)]


@measurement
@pair_options
@published_options
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens of a prompt.")
@new_tokens_option(128)
@repetitions_option(3)
@work_option
def main(
    target: Path | None,
    draft: Path | None,
    text: Path | None,
    gguf: Path | None,
    bundles: tuple[Path, ...],
    prompt_tokens: int,
    new_tokens: int,
    repetitions: int,
    work: Path,
    progress: Progress,
) -> ServingResult:
    """Time servers of both programs with eight clients at once, on the demo pair grown to a real size, or on --gguf."""
    require_both(gguf, bundles)
    peer = Peer.open(work, *TOOLS)
    if gguf is None:
        peers, ours = pair_servers(work, peer.binaries, grown_pair(work, target, draft), peer.threads)
    else:
        files = published_files(peer, gguf)
        peers = {name: file_server(work, peer.binaries, file, peer.threads) for name, file in files.items()}
        ours = {bundle.stem: bundle for bundle in bundles}
    servers: dict[Name, Open] = {(PEER, name): partial(_of_peer, server) for name, server in peers.items()}
    servers |= {(OURS, name): partial(_of_ours, path, peer.threads) for name, path in ours.items()}
    tokens = read_tokens(next(iter(ours.values())), text or held_out_text(work), CLIENTS * ANSWERS)
    prompts = prompts_of(tokens, CLIENTS * ANSWERS, prompt_tokens)
    shares = [prompts[i * ANSWERS : (i + 1) * ANSWERS] for i in range(CLIENTS)]
    with termination_as_interrupt():  # which ends the server that is open
        trials = measure(servers, shares, new_tokens, repetitions, progress)
    return ServingResult(
        peer=PACKAGE,
        threads=peer.threads,
        clients=CLIENTS,
        answers=ANSWERS,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        rows=tuple(
            Row(program=program, target=of, tokens_per_second=median(t), trials_tokens_per_second=tuple(t))
            for (program, of), t in trials.items()
        ),
    )


def measure(
    servers: Mapping[Name, Open],
    shares: Sequence[Sequence[Sequence[int]]],
    new_tokens: int,
    repetitions: int,
    progress: Progress,
) -> dict[Name, list[float]]:
    """Tokens a second of all clients together in each repetition, from the first request to the last piece."""

    def trial(name: Name) -> float:
        with servers[name]() as writer:
            ask_at_once(writer, [share[:1] for share in shares], WARM_TOKENS)  # reads the weights, learns costs
            speed = tokens_per_second(ask_at_once(writer, shares, new_tokens), new_tokens)
        progress(f"{' '.join(name)}: {speed:.1f} tok/s")
        return speed

    return trials_of(list(servers), trial, repetitions)


def pair_servers(folder: Path, binaries: Path, pair: Pair, threads: int) -> tuple[dict[str, Server], dict[str, Path]]:
    """The peer's servers, plain and with its draft, and our bundles, whose K is chosen by cost."""
    target = gguf_file(folder, binaries, pair.target, "target", PEER_TARGET)
    draft = gguf_file(folder, binaries, pair.drafts["demo draft"], "demo-draft", F16)
    plain = file_server(folder, binaries, target, threads)
    peers = {PEER_TARGET: plain, f"{PEER_TARGET}, speculating": replace(plain, draft=draft, k=PEER_K)}
    return peers, {str(each): bundle(folder, pair, each, "demo draft", WHOLE) for each in OUR_TARGETS}


def file_server(folder: Path, binaries: Path, file: Path, threads: int) -> Server:
    """The peer's server of one file, with a slot for each client."""
    return Server(binaries, file, threads, folder / "llama-server.log", slots=CLIENTS)


@contextmanager
def _of_peer(server: Server) -> Iterator[Writer]:
    def body(prompt: Sequence[int], new_tokens: int, plain: bool) -> dict[str, Any]:
        asked = {"prompt": list(prompt), "n_predict": new_tokens, "ignore_eos": True, "cache_prompt": False}
        return {**asked, **GREEDY, "stream": True}

    with server.open() as running:
        yield streamed(running.address, "/completion", body)


@contextmanager
def _of_ours(path: Path, threads: int) -> Iterator[Writer]:
    with specserve(path, "--slots", CLIENTS, "--threads", threads) as server:
        yield of_specserve(server.address)
