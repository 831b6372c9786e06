"""Speculation of llama.cpp and mxspec: one pair, the same prompts, all programs alternating within each repetition.

Each draft is tried at several K on prompts that are not measured, and measured at the fastest, so that each program
runs at its own best. A program is open only while it is timed: an idle one keeps no core and no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bench.llama_cpp import perplexity
from bench.llama_cpp.answers import Answer, Bundled, K, Program, Server
from bench.llama_cpp.build import PACKAGE, Peer, work_option
from bench.llama_cpp.files import F16, Packed, Pair, bundle, gguf_file, grown_pair, held_out_text, pair_options
from bench.llama_cpp.result import OURS, PEER, Row, SpeculativeResult, Trial
from bench.measurement import measurement
from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.evaluate.bench.harness import trials_of
from mxspec.evaluate.bench.options import new_tokens_option, repetitions_option
from mxspec.evaluate.bench.prompts import read_tokens
from mxspec.evaluate.options import Progress
from mxspec.formats.errors import MxspecError

TOOLS = ("llama-server", "llama-quantize", "llama-perplexity")
PEER_TARGETS = (F16, "Q8_0", "Q6_K", "Q4_K_M")
PEER_DRAFTS = (F16, "Q8_0")
PEER_KS = (2, 3, 4, 6, 8)  # 3 is its default
WHOLE = Packed("fp16", "int16")
MXFP4 = Packed("mxfp4_e2m1", "int8")
OUR_TARGETS = (Packed("mxfp6_e3m2", "int16"), Packed("mxfp6_e2m3", "int8"), MXFP4)
OUR_DRAFTS = {"demo draft": WHOLE, "68M draft": Packed("mxfp6_e2m3", "int8")}
OUR_KS: tuple[K, ...] = (2, 3, 4, 6, 8, "auto")
WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table before it is measured: one program in the settings to try."""

    program: str
    target: str
    weight_bytes: int
    draft: str | None
    tried: Mapping[tuple[str, K], Program]  # by the draft's format and K; one for a target alone

    @property
    def name(self) -> str:
        return f"{self.program} {self.target}" + (f", {self.draft}" if self.draft else "")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A line with the setting that it is measured at."""

    entry: Entry
    format: str
    k: K

    @property
    def opened(self) -> Program:
        return self.entry.tried[self.format, self.k]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Stretches of held-out text, spread evenly: some to choose settings by, others to measure."""

    tuning: list[list[int]]
    measured: list[list[int]]
    new_tokens: int

    @classmethod
    def of(cls, token_ids: Sequence[int], tuning: int, measured: int, length: int, new_tokens: int) -> Prompts:
        step = len(token_ids) // (tuning + measured)
        if step < length:
            raise MxspecError(f"text: got {len(token_ids)} tokens, expected {length * (tuning + measured)} for prompts")
        cut = [list(token_ids[i * step : i * step + length]) for i in range(tuning + measured)]
        return cls(cut[measured:], cut[:measured], new_tokens)


# --- what is compared -------------------------------------------------------------------------------------------


def peer_entries(folder: Path, binaries: Path, pair: Pair, threads: int) -> list[Entry]:
    """The peer's targets, each alone and with each draft."""
    drafts = {
        name: {weights: gguf_file(folder, binaries, path, name.replace(" ", "-"), weights) for weights in PEER_DRAFTS}
        for name, path in pair.drafts.items()
    }
    entries = []
    for weights in PEER_TARGETS:
        path = gguf_file(folder, binaries, pair.target, "target", weights)
        alone = Server(binaries, path, threads, folder / "llama-server.log")
        size = path.stat().st_size
        entries.append(Entry(PEER, weights, size, None, {("", 0): alone}))
        for name, files in drafts.items():
            tried: dict[tuple[str, K], Program] = {
                (its, k): replace(alone, draft=draft, k=k) for its, draft in files.items() for k in PEER_KS
            }
            entries.append(Entry(PEER, weights, size, name, tried))
    return entries


def our_entries(folder: Path, pair: Pair, threads: int, calibrate: Path | None) -> list[Entry]:
    """The 16-bit target alone; packed targets alone and with each draft; with `calibrate`, another in four bits."""
    whole = bundle(folder, pair, WHOLE, "demo draft", WHOLE)
    entries = [Entry(OURS, str(WHOLE), _target_bytes(whole), None, {("", 0): Bundled(whole, threads)})]
    calibrated = (replace(MXFP4, calibrate=calibrate),) if calibrate else ()
    for target in (*OUR_TARGETS, *calibrated):
        drafts = dict(list(OUR_DRAFTS.items())[: 1 if target.calibrate else None])  # rounding takes minutes a bundle
        bundles = {name: bundle(folder, pair, target, name, packed) for name, packed in drafts.items()}
        first = next(iter(bundles.values()))
        size = _target_bytes(first)
        entries.append(Entry(OURS, str(target), size, None, {("", 0): Bundled(first, threads)}))
        for name, path in bundles.items():
            tried: dict[tuple[str, K], Program] = {
                (str(OUR_DRAFTS[name]), k): Bundled(path, threads, k) for k in OUR_KS
            }
            entries.append(Entry(OURS, str(target), size, name, tried))
    return entries


def _target_bytes(path: Path) -> int:
    return (path / "target.safetensors").stat().st_size


# --- measuring --------------------------------------------------------------------------------------------------


def answers(program: Program, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answer]:
    """Open a program, let it read its weights once, and ask for all answers."""
    with program.open() as writer:
        writer.answer(prompts[0], WARM_TOKENS)
        return [writer.answer(prompt, new_tokens) for prompt in prompts]


def speed(found: Sequence[Answer]) -> float:
    """Tokens a second after the first of each answer."""
    return sum(len(a.tokens) - 1 for a in found) / sum(a.seconds for a in found)


def choose(entry: Entry, prompts: Prompts, progress: Progress) -> Chosen:
    """The fastest setting: first the best format at one K, then larger or smaller K while they are faster."""
    settings = list(entry.tried)
    if len(settings) == 1:
        return Chosen(entry, *settings[0])
    tried: dict[tuple[str, K], float] = {}

    def rate(setting: tuple[str, K]) -> float:
        if setting not in tried:
            tried[setting] = speed(answers(entry.tried[setting], prompts.tuning, prompts.new_tokens))
            progress(f"{entry.name}, draft in {setting[0]}, K = {setting[1]}: {tried[setting]:.1f} tok/s")
        return tried[setting]

    middle = settings[1][1]
    weights, _ = max((setting for setting in settings if setting[1] == middle), key=rate)
    ladder = [setting for setting in settings if setting[0] == weights and setting[1] != "auto"]
    start = ladder.index((weights, middle))
    for steps in (ladder[start + 1 :], ladder[:start][::-1]):
        best = max(tried, key=rate)
        for setting in steps:
            if rate(setting) < rate(best):
                break
            best = setting
    if (weights, "auto") in entry.tried:
        rate((weights, "auto"))
    return Chosen(entry, *max(tried, key=rate))


def measure(chosen: Sequence[Chosen], prompts: Prompts, repetitions: int, progress: Progress) -> list[list[Trial]]:
    """All answers of each line; the lines alternate within each repetition."""
    plain: dict[tuple[str, str], list[Answer]] = {}  # of the repetition's target alone

    def write(line: int) -> list[tuple[Answer, Answer | None]]:
        """Answers of a line, each beside that of its target alone."""
        entry = chosen[line].entry
        found = answers(chosen[line].opened, prompts.measured, prompts.new_tokens)
        progress(f"{entry.name}: {speed(found):.1f} tok/s")
        if entry.draft is None:
            plain[entry.program, entry.target] = found
            return [(answer, None) for answer in found]
        return list(zip(found, plain[entry.program, entry.target], strict=True))

    return [
        [
            trial(prompt, repetition, *both)
            for repetition, found in enumerate(lines)
            for prompt, both in enumerate(found)
        ]
        for lines in trials_of(range(len(chosen)), write, repetitions).values()
    ]


def trial(prompt: int, repetition: int, found: Answer, plain: Answer | None) -> Trial:
    return Trial(
        prompt=prompt,
        repetition=repetition,
        tokens=len(found.tokens) - 1,
        seconds=found.seconds,
        drafted=found.drafted,
        accepted=found.accepted,
        same_text=None if plain is None else found.tokens == plain.tokens,
    )


def check_tokens(entries: Sequence[Entry], text: str, ours: Sequence[int]) -> None:
    """Check that both programs read the same tokens. Raises MxspecError at the first difference."""
    server = next(program for program in entries[0].tried.values())
    assert isinstance(server, Server)
    with server.open() as running:
        its = running.tokenize(text)
    for i, (mine, other) in enumerate(zip(ours, its, strict=False)):
        if mine != other:
            raise MxspecError(f"token {i} of the text: got {other} of llama.cpp, expected {mine}")
    if len(ours) != len(its):
        raise MxspecError(f"tokens of the text: got {len(its)} of llama.cpp, expected {len(ours)}")


def perplexities(
    entries: Sequence[Entry], binaries: Path, text: Path, ids: Sequence[int], windows: int, progress: Progress
) -> dict[tuple[str, str], float]:
    """The perplexities by program and target."""
    found = {}
    for entry in entries:
        if entry.draft is None:
            (program,) = entry.tried.values()
            if isinstance(program, Server):
                value = perplexity.of_peer(binaries, program.model, text, windows, program.threads)
            else:
                assert isinstance(program, Bundled)
                value = perplexity.of_bundle(program.bundle, ids, windows, program.threads)
            found[entry.program, entry.target] = value
            progress(f"{entry.name}: perplexity {value:.4f}")
    return found


@measurement
@pair_options
@click.option("--calibrate", type=click.Path(path_type=Path, exists=True), help="Text to round one more target by.")
@click.option("--prompts", "count", type=click.IntRange(min=1), default=4, show_default=True, help="Number of prompts.")
@click.option("--prompt-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens of a prompt.")
@new_tokens_option(128)
@click.option("--windows", type=click.IntRange(min=2), default=20, show_default=True, help="Windows for perplexity.")
@repetitions_option(3)
@work_option
def main(
    target: Path | None,
    draft: Path | None,
    text: Path | None,
    calibrate: Path | None,
    count: int,
    prompt_tokens: int,
    new_tokens: int,
    windows: int,
    repetitions: int,
    work: Path,
    progress: Progress,
) -> SpeculativeResult:
    """Time greedy answers of both programs, plain and with a draft, on the demo pair grown to a real size.

    Its acceptance is real. Both programs first show that they read the same tokens, and their perplexities.
    """
    peer, pair, text = Peer.open(work, *TOOLS), grown_pair(work, target, draft), text or held_out_text(work)
    peers, ours = (
        peer_entries(work, peer.binaries, pair, peer.threads),
        our_entries(work, pair, peer.threads, calibrate),
    )
    ids = read_tokens(bundle(work, pair, WHOLE, "demo draft", WHOLE), text, count)
    with termination_as_interrupt():  # which ends the server that is open
        check_tokens(peers, text.read_text(), ids)
        prompts = Prompts.of(ids, 2, count, prompt_tokens, new_tokens)
        losses = perplexities([*peers, *ours], peer.binaries, text, ids, windows, progress)
        chosen = [choose(entry, prompts, progress) for entry in (*peers, *ours)]
        trials = measure(chosen, prompts, repetitions, progress)
    return SpeculativeResult(
        peer=PACKAGE,
        threads=peer.threads,
        prompts=count,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repetitions=repetitions,
        perplexity_tokens=windows * perplexity.SCORED,
        rows=tuple(_row(each, tuple(line), losses) for each, line in zip(chosen, trials, strict=True)),
    )


def _row(chosen: Chosen, trials: tuple[Trial, ...], losses: Mapping[tuple[str, str], float]) -> Row:
    entry = chosen.entry
    perplexity = losses[entry.program, entry.target]
    whole = losses[entry.program, F16 if entry.program == PEER else str(WHOLE)]
    return Row(
        program=entry.program,
        target=entry.target,
        weight_bytes=entry.weight_bytes,
        draft=f"{entry.draft} in {chosen.format}" if entry.draft else None,
        k=chosen.k if entry.draft else None,
        perplexity=perplexity,
        perplexity_ratio=perplexity / whole,
        trials=trials,
    )
