"""The results of the scripts in this folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import median, median_ratio
from mxspec.evaluate.result import Column, Result, Sheet, Value


class Speed(Value):
    """Weights a second of one instruction set from one source into one format, and the seconds of every trial."""

    isa: str
    format: str
    source: str
    weights_per_s: float
    weights_per_core_s: float
    read_bytes_per_s: float
    seconds: tuple[float, ...]
    core_seconds: tuple[float, ...]


class CodecResult(Result):
    """`codec`: matrices of rows x columns, quantised and packed."""

    kind: ClassVar[str] = "codec"

    rows: int
    columns: int
    threads: int
    repetitions: int
    speeds: tuple[Speed, ...]

    def sheets(self) -> Sequence[Sheet]:
        found = {(s.isa, s.format, s.source): s for s in self.speeds}
        sources = list(dict.fromkeys(s.source for s in self.speeds))
        names = dict.fromkeys((s.isa, s.format) for s in self.speeds)
        columns = (
            *map(Column, ("instruction set", "to")),
            *(Column(f"from {source}", ",.0f", 1e-6) for source in sources),
        )
        title = f"million weights a second, {self.rows:,} x {self.columns:,}"
        return [
            Sheet(f"{title}, {self.threads} threads", columns, tuple(
                (*name, *(found[*name, source].weights_per_s for source in sources)) for name in names
            ), (f"Medians of {self.repetitions} repetitions.",), keys=2),
            Sheet(f"{title} of one core", columns, tuple(
                (*name, *(found[*name, source].weights_per_core_s for source in sources)) for name in names
            ), keys=2),
        ]  # fmt: skip


class CompileResult(Result):
    """`compile-memory`: the memory and time of compiling a pair of random weights."""

    kind: ClassVar[str] = "compile-memory"

    shape: str
    layers: int
    whole_layers: int | None = None  # of the shape; older records do not say
    gptq_tokens: int | None
    weights: int
    seconds: float
    stage_seconds: dict[str, float]
    weights_per_second: float
    anonymous_bytes: int
    cgroup_bytes: int | None
    rounding_seconds_of_whole: float | None = None

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("shape"),
            Column("million weights", ",.0f", 1e-6),
            Column("seconds", ".0f"),
            Column("of which export", ".0f"),
            Column("rounding", ".0f"),
            Column("packing, M weights/s", ",.0f", 1e-6),
            Column("anonymous memory, MB", ",.0f", 1e-6),
            Column("of a cgroup of, MB", ",.0f", 1e-6),
        )
        cut = "" if self.whole_layers in (None, self.layers) else f", {self.layers} layers"
        cut = cut if self.gptq_tokens is None else f", {self.layers} layers, gptq"
        row = (
            self.shape + cut,
            self.weights,
            self.seconds,
            self.stage_seconds["export target"],
            self.stage_seconds.get("round target"),
            self.weights_per_second,
            self.anonymous_bytes,
            self.cgroup_bytes,
        )
        notes: tuple[str, ...] = ()
        if self.gptq_tokens is not None and self.rounding_seconds_of_whole is not None:
            notes = (
                f"Rounding on {self.gptq_tokens:,} tokens would take at most {self.rounding_seconds_of_whole / 60:.0f} "
                "minutes for all layers of that shape; the time grows with the layers, the memory does not.",
            )
        return [Sheet("", columns, (row,), notes)]


class EditTrial(Value):
    """One edit, written with a drafter and without."""

    prompt_tokens: int
    new_tokens: int
    plain_seconds_a_token: float
    seconds_a_token: float
    tokens_a_round: float
    speedup: float


class EditsResult(Result):
    """`edits`: medians over the edits."""

    kind: ClassVar[str] = "edits"
    faster_if_more = ("speedup", "tokens_a_round")
    faster_if_less = ("plain_seconds_a_token", "seconds_a_token")

    bundle: str
    drafter: str
    threads: int
    speedup: float
    tokens_a_round: float
    trials: tuple[EditTrial, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("prompt tokens"),
            Column("new tokens"),
            Column("tokens a round", ".2f"),
            Column("speedup", ".2f"),
        )
        rows = tuple((str(t.prompt_tokens), t.new_tokens, t.tokens_a_round, t.speedup) for t in self.trials)
        medians = ("median", None, self.tokens_a_round, self.speedup)
        return [Sheet(f"{self.bundle}, {self.threads} threads, drafter {self.drafter}", columns, (*rows, medians))]


class OtherTokensRow(Value):
    """Answers with one bundle's draft, whose tokenizer is not the target's; what it reads is counted in its tokens."""

    bundle: str
    temperature: float
    tokens_a_round: float
    acceptance: float
    calls_a_round: float
    read_a_token: float
    again_a_token: float


class OtherTokensResult(Result):
    """`other-tokenizer`: a pair with two tokenizers, by the way in which the draft's tokens are proposed."""

    kind: ClassVar[str] = "other-tokenizer"

    k: int
    prompts: int
    tokens: int
    rows: tuple[OtherTokensRow, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("bundle"),
            Column("temperature"),
            Column("tokens a round", ".2f"),
            Column("acceptance", ".3f"),
            Column("calls of the draft a round", ".2f"),
            Column("tokens of its own read a token", ".2f"),
            Column("of these read again", ".3f"),
        )
        rows = tuple(
            (
                row.bundle,
                f"{row.temperature:g}",
                row.tokens_a_round,
                row.acceptance,
                row.calls_a_round,
                row.read_a_token,
                row.again_a_token,
            )
            for row in self.rows
        )
        return [Sheet(f"{self.prompts} answers of {self.tokens} tokens, K = {self.k}", columns, rows, keys=2)]


class ExactRow(Value):
    """All answers of one way: the share that is right to the last character, and speeds."""

    way: str
    exact: float
    tokens_a_call: float
    tokens_per_second: float
    speedup: float
    trials_speedup: tuple[float, ...]


class ExactResult(Result):
    """`exact-answers`: a pair's answers to held-out questions."""

    kind: ClassVar[str] = "exact-answers"
    faster_if_more = ("speedup",)

    bundle: str
    threads: int
    questions: int
    rows: tuple[ExactRow, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("way"),
            Column("right", ".1%"),
            Column("tokens a call", ".2f"),
            Column("tok/s", ",.0f"),
            Column("over plain", ".2f"),
        )
        rows = tuple((r.way, r.exact, r.tokens_a_call, r.tokens_per_second, r.speedup) for r in self.rows)
        return [Sheet(f"{self.bundle}, {self.threads} threads, {self.questions} questions", columns, rows)]


class SoakResult(Result):
    """`soak`: what became of random requests to an engine."""

    kind: ClassVar[str] = "soak"

    asked: int
    whole: int
    cancelled: int
    refused: int
    wrong: int
    reused_tokens: int
    reread_tokens: int
    tokens: int
    lost: int
    caches: str
    window: int
    slots: int
    asking_threads: int
    seconds: float
    anonymous_bytes_after_each_round: tuple[int, ...]

    def sheets(self) -> Sequence[Sheet]:
        names = ("asked", "whole", "cancelled", "refused", "lost", "wrong")
        tokens = {"reused tokens": self.reused_tokens, "read again": self.reread_tokens}
        columns = (*map(Column, ("caches", *names, *tokens)), Column("anonymous memory over time, MB"))
        caches = f"{self.caches}, window of {self.window}" if self.window else self.caches
        counts = (*(getattr(self, name) for name in names), *tokens.values())
        row = (caches, *(f"{count:,}" for count in counts), _megabytes(self.anonymous_bytes_after_each_round))
        return [Sheet(f"requests of {self.asking_threads} threads, {self.slots} slots", columns, (row,))]


class LongTextsResult(Result):
    """`long-texts`: the first token after a prompt, read or loaded, and anonymous memory of a server."""

    kind: ClassVar[str] = "long-texts"

    bundle: str
    caches: str
    prompt_tokens: int
    read_seconds: tuple[float, ...]
    loaded_seconds: tuple[float, ...]
    file_bytes: int
    slots: int
    slot_tokens: int
    bytes_before: int
    bytes_full: int
    bytes_idle: int

    def sheets(self) -> Sequence[Sheet]:
        share = median_ratio(self.loaded_seconds, self.read_seconds)
        columns = (
            Column("caches"),
            Column("first token, s: read", ".2f"),
            Column("loaded", ".2f"),
            Column("share", ".3f"),
            Column("file, MB", ".0f", 1e-6),
            Column("server, MB: before", ",.0f", 1e-6),
            Column("with all texts", ",.0f", 1e-6),
            Column("idle", ",.0f", 1e-6),
        )
        seconds = median(self.read_seconds), median(self.loaded_seconds), share
        row = (self.caches, *seconds, self.file_bytes, self.bytes_before, self.bytes_full, self.bytes_idle)
        title = (
            f"{self.bundle}: a prompt of {self.prompt_tokens:,} tokens; a server with {self.slots} texts of "
            f"{self.slot_tokens:,}"
        )
        return [Sheet(title, columns, (row,))]


class MemoryTrial(Value):
    """Decoding with this much memory available: seconds and bytes from the disk for a token, means of a trial."""

    available_bytes: int
    seconds_a_token: float
    disk_bytes_a_token: float


class LessMemoryResult(Result):
    """`less-memory`: decoding with the memory that the weights need, and with less, alternating."""

    kind: ClassVar[str] = "less-memory"

    bundle: str
    threads: int
    tokens: int
    weights_file_bytes: int
    weight_bytes: int
    enough: tuple[MemoryTrial, ...]
    less: tuple[MemoryTrial, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("memory available, of the weights file"),
            Column("tok/s", ".2f"),
            Column("MB from the disk a token", ",.0f", 1e-6),
        )
        rows = []
        for trials in (self.enough, self.less):
            share = median([trial.available_bytes for trial in trials]) / self.weights_file_bytes
            seconds = median([trial.seconds_a_token for trial in trials])
            rows.append((f"{share:.0%}", 1 / seconds, median([trial.disk_bytes_a_token for trial in trials])))
        note = (
            f"Weights file {self.weights_file_bytes / 1e6:,.0f} MB, of which a token reads "
            f"{self.weight_bytes / 1e6:,.0f} MB. "
            f"Medians of {len(self.less)} alternating trials of {self.tokens} tokens."
        )
        return [Sheet(f"{self.bundle}, {self.threads} threads", columns, tuple(rows), (note,))]


class Metric(Value):
    """A metric of a server, and between what it has to be by what clients sent and read."""

    name: str
    least: float
    found: float
    most: float  # more than `least` by what clients that left may have been answered

    @property
    def agrees(self) -> bool:
        return self.least <= self.found <= self.most


class LoadResult(Result):
    """`serve-load`: what became of the requests of many clients to a server."""

    kind: ClassVar[str] = "serve-load"

    bundle: str
    clients: int
    slots: int
    queue: int
    distinct: int
    requests: int
    whole: int
    compared_greedy: int
    compared_sampled: int
    cancelled: int
    malformed: int
    asked_again: int
    wrong: int
    wrong_ones: tuple[str, ...]
    stuck: int
    left_running: float
    metrics: tuple[Metric, ...] = ()
    seconds: float
    median_seconds: float | None
    p95_seconds: float | None
    anonymous_bytes: tuple[tuple[float, int], ...]  # seconds since the start, bytes
    exit_code: int | None
    said: tuple[str, ...]

    @property
    def failure(self) -> str | None:
        """What went wrong, in a line."""
        if not (self.wrong or self.stuck or self.left_running or self.false_metrics):
            return None
        false = "".join(f"; metrics: {one}" for one in self.false_metrics)
        return f"{self.wrong} answers are wrong, {self.stuck} stuck, {self.left_running:g} left running{false}"

    @property
    def false_metrics(self) -> list[str]:
        """What metrics say against what was sent."""
        return [
            f"{one.name}: {one.found:g}, expected {one.least:g} to {one.most:g}"
            for one in self.metrics
            if not one.agrees
        ]

    def sheets(self) -> Sequence[Sheet]:
        names = ("requests", "whole", "cancelled", "malformed", "stuck", "wrong", "asked_again")
        compared = ("compared_greedy", "compared_sampled")
        columns = [Column(name.replace("_", " ")) for name in (*names, *compared)]
        columns += [Column("metrics, of which false"), Column("anonymous memory at each quarter, MB")]
        counts = [f"{getattr(self, name):,}" for name in (*names, *compared)]
        metrics = f"{len(self.metrics)}, {len(self.false_metrics)}" if self.metrics else "-"
        memory, samples = self.anonymous_bytes, len(self.anonymous_bytes)
        quarters = [memory[samples * quarter // 4 - 1][1] for quarter in range(1, 5)] if memory else []
        title = f"requests of {self.clients} clients, {self.slots} slots, {self.seconds:.0f} s"
        return [Sheet(title, tuple(columns), ((*counts, metrics, _megabytes(quarters)),))]


def _megabytes(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size / 1e6:.0f}" for size in sizes)
