"""Texts that must be equal, token by token: those of every way to draft, and those of the target alone.

Greedy text is the target's likeliest token at every position. With a seed, sample-and-match chooses each token by the
seed's noise. Neither text depends on K, the drafter, other texts or the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from mxspec.evaluate.lossless.drafters import RehearsedDrafter
from mxspec.evaluate.lossless.effort import Effort, Speed
from mxspec.evaluate.lossless.job import Job, Way, guessing, own_grammar, penalised, write_all
from mxspec.evaluate.lossless.prompts import CheckPrompt
from mxspec.evaluate.lossless.result import Equality
from mxspec.evaluate.options import Progress
from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.settings import K

SHARE = 0.45  # of the models' time
LEAST = 8  # tokens of a text


def check_equality(
    engine: Engine,
    prompts: Sequence[CheckPrompt],
    seed: int,
    effort: Effort,
    speed: Speed,
    progress: Progress,
    skipped: list[str],
) -> list[Equality]:
    """Write the same texts in every way, and compare them with the target's; add to `skipped` what cannot be."""
    manifest, slots = engine.bundle.manifest, engine.target.slots
    none, drafters = engine.drafters["none"], guessing(engine)
    length, count = _planned(len(_kinds(prompts, seed, 1)), ways(none, drafters, manifest.k_max, slots), effort, speed)
    alone = Reader(Session.of(engine.bundle, "target", 1))
    expected: list[tuple[Job, list[int]]] = []
    for job in _jobs(engine, _kinds(prompts, seed, length), skipped):
        progress(f"{job.kind}: the target alone")
        try:
            expected.append((job, write_alone(engine, alone, job)))
        except GenerationError as error:
            if job.grammar is None:
                raise
            skipped.append(f"{job.kind}: {error}")
    texts = [[*job.prompt.tokens, *tokens] for job, tokens in expected]
    drafters.append(RehearsedDrafter(texts, manifest.tokenizer.vocab_size))
    findings = {job.kind: Equality(name=job.kind, unit="texts") for job, _ in expected}
    for i, way in enumerate(ways(none, drafters, manifest.k_max, slots)):
        progress(f"texts by {way}")
        chosen = [expected[(i + j) % len(expected)] for j in range(min(count, len(expected)))]
        for (job, tokens), text in zip(chosen, write_all(engine, [job for job, _ in chosen], way), strict=True):
            finding = findings[job.kind]
            finding.compared += 1
            if text.error is not None:
                finding.broke_off(way, text.error)
            elif text.tokens != tokens:
                finding.differences.append(f"{way}: {_difference(tokens, text.tokens)}")
    return [*findings.values()]


def write_alone(engine: Engine, reader: Reader, job: Job) -> list[int]:
    """The reference: tokens of the target alone, one a call, without scheduler, slots, drafters or verifiers.

    Sampled tokens are chosen by the noise of sample-and-match.
    """
    shaper, eos, seed = job.shaper(engine, ignore_eos=False), engine.bundle.manifest.tokenizer.eos_token_ids, 0
    if not job.sampling.greedy:
        assert job.sampling.seed is not None
        seed = job.sampling.seed
    reader.begin(job.prompt.source)
    row = reader.append(job.prompt.tokens, 1)[0]
    tokens: list[int] = []
    while True:
        draws = Draws(seed, 0, len(job.prompt.tokens) + len(tokens))
        token = shaper.greedy(row) if job.sampling.greedy else shaper.distribution(row).race(draws, 0)
        tokens.append(token)
        if token in eos:
            return tokens
        shaper.keep([token])
        if shaper.complete or len(tokens) == job.length or reader.length == reader.session.capacity:
            return tokens
        row = reader.forward([token], 1)[0]


def ways(none: Drafter, drafters: Sequence[Drafter], k_max: int, slots: int) -> list[Way]:
    """Ways with each K and each drafter, with one text and several at a time, on one thread and on several."""
    threads = max(len(os.sched_getaffinity(0)), 2)
    first, *others = drafters
    some = min(4, k_max)
    chosen: list[tuple[Drafter, K, int, int]] = [
        (none, 0, 1, threads),
        *((first, k, 1, threads) for k in sorted({min(k, k_max) for k in (1, 2, some, k_max)})),
        *((drafter, some, min(3, slots), threads) for drafter in others),
        (drafters[-1], k_max, 1, 1),
        (first, "auto", min(3, slots), threads),
        (first, k_max, slots, 1),
        (none, 0, slots, threads),
        (drafters[-1], some, slots, threads),
    ]
    return [Way(drafter, k, together, count, "match") for drafter, k, together, count in chosen]


def _kinds(prompts: Sequence[CheckPrompt], seed: int, length: int) -> list[Job]:
    """The texts without grammars: of three lengths, so that slots become free one by one."""
    greedy, sampled = Sampling(), Sampling(1.0, seed=seed)
    kinds = [
        ("greedy text", greedy, 3),
        ("greedy text with penalties", penalised(Sampling()), 2),
        ("sampled text under a seed", sampled, 2),
        ("sampled text under a seed with penalties", penalised(Sampling(0.8, 40, 0.95, seed)), 2),
    ]
    jobs: list[Job] = []
    for kind, sampling, count in kinds:
        for _ in range(count):
            i = len(jobs)
            jobs.append(Job(kind, prompts[i % len(prompts)], sampling, max(length - length * (i % 3) // 4, 1)))
    return jobs


def _jobs(engine: Engine, jobs: list[Job], skipped: list[str]) -> list[Job]:
    """Add texts that keep to a grammar, if that is possible."""
    try:
        grammar = own_grammar(engine)
    except GenerationError as error:
        skipped.append(f"text in a grammar: {error}")
        return jobs
    by_kind = {job.kind: job for job in jobs}
    beside = ("greedy text", "greedy text in a grammar"), ("sampled text under a seed", "sampled text in a grammar")
    more = [replace(by_kind[plain], kind=kind, grammar=grammar) for plain, kind in beside]
    return [*jobs, *more]


def _planned(jobs: int, ways: Sequence[Way], effort: Effort, speed: Speed) -> tuple[int, int]:
    """Tokens of a text, and the number of texts of each way, that the time allows if no drafted token is accepted."""
    seconds = SHARE * effort.model_seconds

    def cost(length: int, share: float) -> float:
        rows = [(way, way.together * ((4 if way.k == "auto" else way.k) + 1)) for way in ways]
        written = sum(max(share * jobs, way.together) * speed.seconds(count) / way.together for way, count in rows)
        return length * (jobs * speed.one_row + written)

    length = effort.equal_tokens
    while length > LEAST and cost(length, 0.0) > seconds / 2:
        length = max(length * 3 // 4, LEAST)
    share = 1.0
    while share > 0.1 and cost(length, share) > seconds:
        share -= 0.1
    return length, max(round(share * jobs), max(way.together for way in ways), 1) if share < 1 else jobs + 2


def _difference(expected: Sequence[int], got: Sequence[int]) -> str:
    place = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if place is None:
        return f"got {len(got)} tokens, expected {len(expected)}"
    return f"token {place} is {got[place]}, expected {expected[place]}"
