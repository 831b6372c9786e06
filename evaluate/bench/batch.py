"""Many texts at once: what a step of the engine gives beside what its calls allow, and what a second turn saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mxspec.evaluate.bench.speculate import GuidedDrafter, draft_of
from mxspec.runtime import ops
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.reader import Reader
from mxspec.runtime.request import K, Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import argmax_tokens, shape
from mxspec.runtime.session import Part, Session

TEXTS = (1, 2, 4, 8)
CACHED = 128  # tokens of each prompt
KS = (0, 1, 2, 3, 4)
NUCLEUS, VOCABULARY = 1000, 152_064  # of the row that shaping is timed on
PAIRS = 3  # of a bare loop and the engine, in a repetition
TURN = (1000, 32)  # tokens of a first turn and of the second


@dataclass(frozen=True, slots=True)
class Answered:
    """Some texts that were written together: wall seconds, tokens, and the seconds in the models."""

    seconds: float
    model_seconds: float
    tokens: int
    texts: list[list[int]]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class Trials:
    """Every repetition's figures of one number of texts."""

    texts: int
    call_seconds: list[float] = field(default_factory=list)  # of a call of one token of each
    plain: list[float] = field(default_factory=list)  # tokens/s without drafting
    outside: list[float] = field(default_factory=list)  # share of the time outside the models
    outside_sampled: list[float] = field(default_factory=list)
    loop_over_plain: list[float] = field(default_factory=list)  # speed of a bare loop over calls over that, one text
    by_k: dict[str, list[float]] = field(default_factory=dict)  # tokens/s at each K with imposed acceptance


class BatchBench:
    """An engine with a slot for each text, prompts of random ids, and an acceptance to impose."""

    def __init__(self, bundle: Path, new_tokens: int, acceptance: float, threads: int | None = None) -> None:
        self.engine = Engine(bundle, slots=max(TEXTS), threads=threads)
        self.new_tokens = new_tokens
        self.session = Session.of(self.engine.bundle, "target", max(TEXTS))
        rng = np.random.default_rng(0)
        vocab = self.engine.bundle.manifest.tokenizer.vocab_size
        self.prompts = [rng.integers(0, vocab, CACHED).tolist() for _ in range(max(TEXTS))]
        self._plain: dict[tuple[int, ...], Sequence[int]] = {}
        self.guided = GuidedDrafter(draft_of(self.engine), self._plain, acceptance)

    def write(self, texts: int, k: K = 0, *, drafter: Drafter | None = None, **settings: Any) -> Answered:
        """Write so many texts together; their prompts, but for the last token, have been read before."""
        shared = {"k": k, "drafter": drafter, "ignore_eos": True, **({"temperature": 0} | settings)}
        for handle in self.engine.submit_all([Request(prompt=p, max_new_tokens=1, **shared) for p in self.prompts]):
            handle.result()
        requests = [Request(prompt=p, max_new_tokens=self.new_tokens, **shared) for p in self.prompts[:texts]]
        began = time.perf_counter()
        handles = self.engine.submit_all(requests)
        events = [list(handle) for handle in handles]
        seconds = time.perf_counter() - began
        longest = max(events, key=lambda found: sum(isinstance(event, Round) for event in found))
        models = sum(event.draft_seconds + event.target_seconds for event in longest if isinstance(event, Round))
        answers = [[event.id for event in found if isinstance(event, Token)] for found in events]
        return Answered(seconds, models, sum(map(len, answers)), answers)

    def plain(self, texts: int) -> Answered:
        """Without drafting; what was written is what a guided drafter guesses."""
        done = self.write(texts)
        for prompt, answer in zip(self.prompts, done.texts, strict=False):
            self._plain[tuple(prompt)] = [*prompt, *answer]
        return done

    def speculative(self, texts: int, k: K) -> Answered:
        """With the imposed acceptance."""
        done = self.write(texts, k, drafter=None if k == 0 else self.guided)
        for prompt, answer in zip(self.prompts, done.texts, strict=False):
            assert self._plain[tuple(prompt)] == [*prompt, *answer], "the text depends on K"
        return done

    def loop(self) -> float:
        """Tokens a second of the plainest loop there is: a call, its likeliest token, the next call."""
        reader = Reader(self.session)
        reader.append(self.prompts[0][:-1], 1)
        token, began = self.prompts[0][-1], time.perf_counter()
        for _ in range(self.new_tokens):
            token = int(argmax_tokens(reader.forward([token], 1))[0])
        return self.new_tokens / (time.perf_counter() - began)

    def call_seconds(self, texts: int) -> float:
        """Median seconds of a call of one token of each text, in the middle of what is written."""
        past = CACHED + self.new_tokens // 2
        parts = [Part(slot, past, [1], 1) for slot in range(texts)]
        for slot in range(texts):
            Reader(self.session, slot).append(self.prompts[slot], 1)
        trials = []
        for _ in range(20):
            began = time.perf_counter()
            self.session.run(parts)
            trials.append(time.perf_counter() - began)
        return statistics.median(trials)

    def second_turn(self) -> tuple[float, float]:
        """Seconds to the first token of a second turn, and of the same prompt read from its first token."""
        rng = np.random.default_rng(time.perf_counter_ns())
        first, more = (rng.integers(0, self.session.real_vocab, count).tolist() for count in TURN)
        self.engine.generate(first, max_new_tokens=1, k=0).result()
        seconds = []
        for key in ("", "another"):  # what was read is not shared with another key
            handle = self.engine.generate([*first, *more], max_new_tokens=1, k=0, cache_key=key)
            seconds.append(handle.result().statistics.prefill_seconds)
        return seconds[0], seconds[1]


def shaping_seconds() -> float:
    """Median seconds of shaping one row by temperature and top-p, with a nucleus of about NUCLEUS entries."""
    rng = np.random.default_rng(0)
    logits = (2.0 * rng.standard_normal(VOCABULARY)).astype(np.float32)
    logits[rng.choice(VOCABULARY, NUCLEUS, replace=False)] += 9
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=0)
    trials = []
    for _ in range(100):
        began = time.perf_counter()
        shape(logits, sampling)
        trials.append(time.perf_counter() - began)
    return statistics.median(trials)


def measure(
    bench: BatchBench, repetitions: int, progress: Callable[[str], object] = lambda text: None
) -> dict[str, Any]:
    """All numbers of texts, alternating within each repetition; medians, and every trial."""
    trials = {texts: Trials(texts) for texts in TEXTS}
    turns: list[tuple[float, float]] = []
    shaping: list[float] = []
    for repetition in range(repetitions):
        bench.guided.seed = repetition
        for texts, found in trials.items():
            progress(f"repetition {repetition + 1} of {repetitions}, {texts} texts")
            _repeat(bench, found)
        turns.append(bench.second_turn())
        shaping.append(shaping_seconds())
    rows = [_row(found, trials[1]) for found in trials.values()]
    return {
        "threads": ops.threads(),
        "cached": CACHED,
        "new_tokens": bench.new_tokens,
        "rows": rows,
        "second_turn": {
            "tokens": TURN,
            "seconds": statistics.median(turn[0] for turn in turns),
            "whole_seconds": statistics.median(turn[1] for turn in turns),
            "ratio": statistics.median(turn[0] / turn[1] for turn in turns),
            "trials": turns,
        },
        "shaping": {
            "vocabulary": VOCABULARY,
            "nucleus": NUCLEUS,
            "seconds_a_row": statistics.median(shaping),
            "share_of_a_step": max(TEXTS) * statistics.median(shaping) / statistics.median(trials[8].call_seconds),
        },
    }


def _repeat(bench: BatchBench, found: Trials) -> None:
    found.call_seconds.append(bench.call_seconds(found.texts))
    done = bench.plain(found.texts)
    if found.texts == 1:  # each between two of the other, as the machine's speed moves
        pairs = [(bench.loop(), bench.plain(1).tokens_per_second) for _ in range(PAIRS)]
        found.loop_over_plain.append(statistics.median(loop / plain for loop, plain in pairs))
    found.plain.append(done.tokens_per_second)
    found.outside.append(1 - done.model_seconds / done.seconds)
    sampled = bench.write(found.texts, temperature=0.8, top_p=0.5, seed=0)
    found.outside_sampled.append(1 - sampled.model_seconds / sampled.seconds)
    for k in (*KS, "auto"):
        done = bench.speculative(found.texts, k)
        found.by_k.setdefault(str(k), []).append(done.tokens_per_second)


def _row(found: Trials, one: Trials) -> dict[str, Any]:
    by_k = {k: statistics.median(values) for k, values in found.by_k.items()}
    best = max((k for k in by_k if k != "auto"), key=lambda k: by_k[k])
    ratios = list(_ratios(found.by_k, best))
    return {
        "texts": found.texts,
        "call_seconds": statistics.median(found.call_seconds),
        "tokens_per_second": statistics.median(found.plain),
        "over_one_text": statistics.median(a / b for a, b in zip(found.plain, one.plain, strict=True)),
        "of_what_the_call_allows": statistics.median(
            rate * seconds / found.texts for rate, seconds in zip(found.plain, found.call_seconds, strict=True)
        ),
        "outside_models": statistics.median(found.outside),
        "outside_models_sampled": statistics.median(found.outside_sampled),
        "time_over_plain_loop": statistics.median(found.loop_over_plain) if found.loop_over_plain else None,
        "best_k": int(best),
        "tokens_per_second_by_k": by_k,
        "by_load_over_best_k": statistics.median(ratio[0] for ratio in ratios),
        "by_load_over_plain": statistics.median(ratio[1] for ratio in ratios),
        "trials": asdict(found),
    }


def _ratios(by_k: Mapping[str, Sequence[float]], best: str) -> Iterator[tuple[float, float]]:
    """Of each repetition: K by load over the best fixed K, and over none."""
    for auto, fixed, plain in zip(by_k["auto"], by_k[best], by_k["0"], strict=True):
        yield auto / fixed, auto / plain
