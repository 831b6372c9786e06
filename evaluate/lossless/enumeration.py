"""Sampled texts of a few words against the exact probability of each: whole texts, through the real scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from tokenizers import Tokenizer, models

from mxspec.evaluate.lossless.exact import text_probabilities
from mxspec.evaluate.lossless.finding import Chance, Equality
from mxspec.evaluate.lossless.job import penalised
from mxspec.evaluate.lossless.table import PROMPT, WORDS, Table, TableSession, number_of, score_tables
from mxspec.evaluate.lossless.tails import Probs, chi_square_tail
from mxspec.formats.manifest import ModelName
from mxspec.runtime.drafters.drafter import ProposalKind
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Token
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduler import Scheduler
from mxspec.runtime.sequence import Sequence, Settings
from mxspec.runtime.session import Session
from mxspec.runtime.strategy import choose_strategy
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.verifiers.measured import Measured

LENGTH = 4  # words of a text that count
K = 3
SLOTS = 32  # texts at a time
THIN = 5.0  # cells of fewer expected texts are joined: the chi-square law is for others
ENTROPY = 1.4  # nats, of a word at the temperature chosen: texts of many kinds come up
Tables = dict[ModelName, Table]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rounds:
    """A way to sample the words."""

    name: str
    drafter: str
    verifier: str
    sampling: Sampling
    proposal: ProposalKind = "sampled"


def check_enumeration(
    engine: Engine, prompt: list[int], seed: int, sequences: int, progress: Progress
) -> tuple[list[Chance], Equality]:
    """Count the texts of each way; the tests, and the texts that cannot be or broke off."""
    progress("eight words: scoring the tables")
    tables = score_tables(engine, prompt)
    possible = Equality("eight words: texts that the target can write", "texts")
    wanted = _wanted("model" if engine.draft is not None else "random", even_temperature(tables["target"]))
    chances = []
    for number, rounds in enumerate(wanted):
        progress(f"eight words, {rounds.name}")
        words = Words(tables, rounds)
        count = sequences // len(wanted)
        expected = count * text_probabilities(tables["target"], rounds.sampling, LENGTH)
        counts = np.zeros(WORDS**LENGTH)
        for text in words.write(count, seed * len(wanted) + number, possible):
            counts[text] += 1
        possible.compared += count
        for text in np.flatnonzero((counts > 0) & (expected == 0)).tolist():
            possible.differences.append(f"{rounds.name}: text {_words(text)} has no probability")
        chances.append(Chance(f"eight words, {rounds.name}", "texts", count, *compare_counts(counts, expected)))
    return chances, possible


def _wanted(drafter: str, temperature: float) -> list[Rounds]:
    plain, cut = Sampling(temperature), Sampling(temperature, 6)
    return [
        Rounds("mrs", drafter, "mrs", cut),
        Rounds("mrs with penalties", drafter, "mrs", penalised(Sampling(temperature, top_p=0.95))),
        Rounds("mrs with a greedy proposal", drafter, "mrs", plain, "greedy"),
        Rounds("block", drafter, "block", plain),
        Rounds("match", drafter, "match", cut),
        Rounds("mrs, drafter random", "random", "mrs", plain),
    ]


def even_temperature(table: Table) -> float:
    """At which the words of a table have a mean entropy of ENTROPY: by halving, as it rises with the temperature."""
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _entropy(table, middle) < ENTROPY else (low, middle)
    return round(high, 3)


def _entropy(table: Table, temperature: float) -> float:
    logs = table.rows.astype(np.float64) / temperature
    logs -= logs.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return float(-(np.exp(logs) * logs).sum(axis=1).mean())


def compare_counts(counts: Probs, expected: Probs) -> tuple[float, str]:
    """Pearson's chi-square test of float64[cells]: its p-value, and the statistic in words.

    Thin cells spread the statistic more than the law has it: it is brought to the law's variance (Haldane 1937).
    """
    thick = expected >= THIN
    pairs = [*zip(counts[thick], expected[thick], strict=True), (counts[~thick].sum(), expected[~thick].sum())]
    cells = [(count, mean) for count, mean in pairs if mean > 0]
    degrees, total = len(cells) - 1, sum(mean for _, mean in cells)
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    variance = 2 * degrees + sum(1 / mean for _, mean in cells) - (len(cells) ** 2 + 2 * len(cells) - 2) / total
    fitted = degrees + (statistic - degrees) * math.sqrt(2 * degrees / max(variance, 2 * degrees))
    return chi_square_tail(float(fitted), degrees), f"chi-square {statistic:.0f}, {degrees} degrees of freedom"


class Words:
    """Writes texts over the tables, many at a time."""

    def __init__(self, tables: Tables, rounds: Rounds) -> None:
        self._rounds = rounds
        # The first words that count are not to end in a round that is cut short.
        self._most = LENGTH + K + 1
        capacity = len(PROMPT) + self._most + K
        sessions = {name: TableSession(table, capacity, SLOTS) for name, table in tables.items()}
        self._capacity = capacity
        self._draft = cast(Session, sessions["draft"])
        self._scheduler = Scheduler(cast(Session, sessions["target"]), self._draft, K, prefill_ms=1e3)
        self._drafters = make_drafters(WORDS, self._draft)
        self._tokenizer = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(WORDS)}, unk_token="<0>"))

    def write(self, count: int, stream: int, broken: Equality) -> Iterator[int]:
        """The numbers of `count` texts; those that end in an error are differences."""
        rng = np.random.default_rng([7, stream])
        outboxes = [_Outbox() for _ in range(count)]
        for outbox in outboxes:
            self._scheduler.add([self._sequence(int(rng.integers(2**53)), outbox)])
        while self._scheduler.busy:
            self._scheduler.step()
        for outbox in outboxes:
            if outbox.error is not None:
                broken.differences.append(f"{self._rounds.name}: the text broke off: {outbox.error}")
            else:
                yield number_of(outbox.words[:LENGTH])

    def _sequence(self, seed: int, outbox: _Outbox) -> Sequence:
        rounds = self._rounds
        sampling = replace(rounds.sampling, seed=seed)
        request = Request(
            prompt=PROMPT, drafter=rounds.drafter, k=K, verifier=rounds.verifier, proposal=rounds.proposal, seed=seed
        )
        settings = Settings(
            prompt=list(PROMPT),
            sampling=sampling,
            strategy=choose_strategy(request, sampling, self._drafters, K, Measured()),
            max_new_tokens=self._most,
            eos=frozenset(),
        )
        shaper = Shaper(sampling, PROMPT, vocab_size=WORDS, eos=())
        return Sequence(settings, shaper, TextStream(self._tokenizer, PROMPT), outbox, self._capacity)


class _Outbox:
    """The words of one text."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.error: BaseException | None = None

    def put(self, event: object) -> None:
        if isinstance(event, Token):
            self.words.append(event.id)
        elif isinstance(event, BaseException):
            self.error = event


def _words(number: int) -> list[int]:
    return [number // WORDS**i % WORDS for i in reversed(range(LENGTH))]
