"""Sampled texts of a few words against the exact probability of each: whole texts, through the real scheduler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from tokenizers import Tokenizer, models

from mxspec.evaluate.lossless.exact import text_probabilities
from mxspec.evaluate.lossless.finding import Chance, Equality, Progress
from mxspec.evaluate.lossless.job import penalised
from mxspec.evaluate.lossless.prompts import Prompt
from mxspec.evaluate.lossless.table import PROMPT, WORDS, Table, TableSession, number_of, score_tables
from mxspec.evaluate.significance import Probs, chi_square_tail
from mxspec.formats.manifest import ModelName
from mxspec.runtime.drafters.drafter import ProposalKind
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Token
from mxspec.runtime.models.session import Session
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.scheduler import Scheduler
from mxspec.runtime.scheduling.sequence import Sequence
from mxspec.runtime.scheduling.settings import Settings
from mxspec.runtime.scheduling.strategy import choose_strategy
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.verifiers.measured import Measured

LENGTH = 4  # words of a text that count: the first of the prompt's own row, then a round of K = 2 with its bonus
SLOTS = 32  # texts at a time
THIN = 5.0  # cells of fewer expected texts are joined: the chi-square law is for others
TARGET_LEAD, DRAFT_LEAD = 1.4, 6.0  # spread of the logits of two words, which temperatures bring about
ENTROPY = 1.4  # nats, of a word at the temperature chosen: texts of many kinds come up
Tables = dict[ModelName, Table]

@dataclass(frozen=True, slots=True)
class Rounds:
    """A way to sample the words."""

    name: str
    drafter: str
    verifier: str
    sampling: Sampling
    k: int = 2
    proposal: ProposalKind = "sampled"
    draft_temperature: float | None = None
    share: int = 1  # of the texts, beside the others'

def check_enumeration(
    engine: Engine, prompt: Prompt, seed: int, sequences: int, progress: Progress
) -> tuple[list[Chance], Equality]:
    """Count the texts of each way; the tests, and the texts that cannot be or broke off."""
    progress("eight words: scoring the tables")
    tables = score_tables(engine, prompt.tokens, prompt.source)
    possible = Equality("eight words: texts that the target can write", "texts")
    wanted = all_rounds(tables, engine.draft is not None)
    unit = sequences // sum(rounds.share for rounds in wanted)
    chances = []
    for number, rounds in enumerate(wanted):
        progress(f"eight words, {rounds.name}")
        count = unit * rounds.share
        words = Words(tables, rounds)
        expected = count * text_probabilities(tables["target"], rounds.sampling, LENGTH)
        counts = np.zeros(WORDS**LENGTH)
        for text in words.write(count, seed * len(wanted) + number, possible):
            counts[text] += 1
        possible.compared += count
        for text in np.flatnonzero((counts > 0) & (expected == 0)).tolist():
            possible.differences.append(f"{rounds.name}: text {_words(text)} has no probability")
        chances.append(
            Chance(f"eight words, {rounds.name}", "counts", "texts", count, *compare_counts(counts, expected))
        )
    return chances, possible

def all_rounds(tables: Tables, has_draft: bool) -> list[Rounds]:
    """Every verifier and proposal with the first drafter, shaped in different ways, and all other drafters."""
    drafter = "model" if has_draft else "random"
    others = make_drafters(WORDS, cast(Session, TableSession(tables["draft"], 1, 1)) if has_draft else None)
    temperature = even_temperature(tables["target"])
    plain, cut = Sampling(temperature), Sampling(temperature, 6)
    found = [
        Rounds("mrs", drafter, "mrs", cut),
        Rounds("mrs with penalties", drafter, "mrs", penalised(Sampling(temperature, top_p=0.95))),
        Rounds("mrs with a greedy proposal", drafter, "mrs", plain, proposal="greedy"),
        Rounds("match", drafter, "match", cut),
        Rounds("block", drafter, "block", plain, k=3),
    ]
    found += [Rounds(f"mrs, drafter {name}", name, "mrs", plain) for name in others if name not in ("none", drafter)]
    return [*found, two_words(tables, drafter)] if has_draft else found

def two_words(tables: Tables, drafter: str) -> Rounds:
    """Two words that both models find about as likely, and a draft that is far too sure of its own.

    Blocks that are cut show here whether their random numbers are used again: what is drafted is discarded often, and
    few texts are possible, so that each comes up often.
    """
    target, draft = tables["target"], tables["draft"]
    pairs = itertools.combinations(range(WORDS), 2)
    pair = min(
        pairs, key=lambda pair: sum(abs(mean) / spread for mean, spread in (_lead(t, pair) for t in (target, draft)))
    )
    others = {word: -math.inf for word in range(WORDS) if word not in pair}
    sampling = Sampling(_lead(target, pair)[1] / TARGET_LEAD, logit_bias=others)
    sharp = _lead(draft, pair)[1] / DRAFT_LEAD
    return Rounds("block, a sure draft of two words", drafter, "block", sampling, 3, draft_temperature=sharp, share=3)

def _lead(table: Table, pair: tuple[int, int]) -> tuple[float, float]:
    """Mean and spread of how far the logit of one word is above the other's."""
    lead = table.rows[:, pair[0]].astype(np.float64) - table.rows[:, pair[1]]
    return float(lead.mean()), float(lead.std()) + 1e-6

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
    if not degrees:
        return 1.0, "too few texts to say"
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    variance = 2 * degrees + sum(1 / mean for _, mean in cells) - (len(cells) ** 2 + 2 * len(cells) - 2) / total
    fitted = degrees + (statistic - degrees) * math.sqrt(2 * degrees / max(variance, 2 * degrees))
    return chi_square_tail(float(fitted), degrees), f"chi-square {statistic:.0f}, {degrees} degrees of freedom"

class Words:
    """Writes texts over the tables, many at a time."""

    def __init__(self, tables: Tables, rounds: Rounds) -> None:
        self._rounds = rounds
        # The first words that count are not to end in a round that is cut short.
        self._most = LENGTH + rounds.k + 1
        capacity = len(PROMPT) + self._most + rounds.k
        sessions = {name: TableSession(table, capacity, SLOTS) for name, table in tables.items()}
        self._capacity = capacity
        self._draft = cast(Session, sessions["draft"])
        self._scheduler = Scheduler(cast(Session, sessions["target"]), self._draft, rounds.k, prefill_ms=1e3)
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
                broken.broke_off(self._rounds.name, outbox.error)
            else:
                yield number_of(outbox.words[:LENGTH])

    def _sequence(self, seed: int, outbox: _Outbox) -> Sequence:
        rounds = self._rounds
        sampling = replace(rounds.sampling, seed=seed)
        request = Request(
            prompt=PROMPT,
            drafter=rounds.drafter,
            k=rounds.k,
            verifier=rounds.verifier,
            proposal=rounds.proposal,
            draft_temperature=rounds.draft_temperature,
        )
        settings = Settings(
            prompt=list(PROMPT),
            sampling=sampling,
            strategy=choose_strategy(request, sampling, self._drafters, rounds.k, Measured()),
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

    def put(self, *events: object) -> None:
        for event in events:
            if isinstance(event, Token):
                self.words.append(event.id)
            elif isinstance(event, BaseException):
                self.error = event

def _words(number: int) -> list[int]:
    return [number // WORDS**i % WORDS for i in reversed(range(LENGTH))]
