"""Sampled text, scored again: is it from the target's distribution?

The engine samples from the full vocabulary in every way that it supports. Other sessions, without drafts, then read
each text, and compare every emitted token with the target's distribution at its position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from mxspec.evaluate.lossless.effort import ROWS, Effort, Speed
from mxspec.evaluate.lossless.evidence import Evidence
from mxspec.evaluate.lossless.job import Job, Way, Written, guessing, own_grammar, penalised, write_all
from mxspec.evaluate.lossless.prompts import CheckPrompt
from mxspec.evaluate.lossless.result import Equality
from mxspec.evaluate.options import Progress
from mxspec.evaluate.significance import Probs
from mxspec.formats.errors import ContextLengthError, GenerationError
from mxspec.formats.manifest import ModelName
from mxspec.runtime.engine import Engine
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import NoTokenError
from mxspec.runtime.verifiers.verify import MRS, VERIFIERS

SHARE = 0.45  # of the models' time
LENGTHS = 24, 64  # tokens of a text, at least and at most
K = 4
FIRST_SHARE = 3  # of the first way, whose power is computed


@dataclass(frozen=True, slots=True)
class Sampled:
    """A way to sample."""

    name: str
    way: Way
    sampling: Sampling
    in_grammar: bool = False
    share: int = 1  # of the tokens, relative to other ways


def check_rescored(
    engine: Engine, prompts: Sequence[CheckPrompt], seed: int, effort: Effort, speed: Speed, progress: Progress
) -> tuple[list[Evidence], list[Equality]]:
    """Write and score texts; return the evidence of each way, the failed texts, and impossible tokens."""
    whole = Equality(name="sampled text: written to its end", unit="texts")
    possible = Equality(name="sampled text: tokens that the target can write", unit="tokens")
    wanted = _wanted(engine)
    unit = _tokens_of_each(wanted, effort, speed)
    found = []
    for number, sampled in enumerate(wanted):
        progress(f"sampled text, {sampled.name}")
        evidence = Evidence(f"sampled text, {sampled.name}", possible)
        rng = np.random.default_rng([seed, number])
        jobs = list(_jobs(engine, sampled, prompts, unit * sampled.share, rng))
        for text in write_all(engine, jobs, sampled.way):
            whole.compared += 1
            if text.error is not None:
                whole.broke_off(sampled.way, text.error)
            _score(engine, text, evidence, rng)
        found.append(evidence)
    return found, [whole, possible]


def _wanted(engine: Engine) -> list[Sampled]:
    """Every verifier with the first drafter, and modified rejection sampling with all."""
    first, *others = guessing(engine)
    slots, threads = engine.target.slots, len(os.sched_getaffinity(0))
    mrs = Way(first, min(K, engine.bundle.manifest.k_max), slots, threads, MRS.name, ignore_eos=True)
    plain = Sampling(1.0)
    found = [
        Sampled("mrs", mrs, plain, share=FIRST_SHARE),
        Sampled("mrs with penalties, top-k and top-p", mrs, penalised(Sampling(0.8, 100, 0.95))),
        Sampled("mrs with a greedy proposal", replace(mrs, proposal="greedy"), plain),
        *(Sampled(name, replace(mrs, verifier=name), plain) for name in VERIFIERS if name != MRS.name),
        *(Sampled(f"mrs, drafter {drafter.name}", replace(mrs, drafter=drafter), plain) for drafter in others),
    ]
    try:
        own_grammar(engine)
    except GenerationError:
        return found
    return [*found, Sampled("mrs in a grammar", replace(mrs, ignore_eos=False), plain, in_grammar=True)]


def _tokens_of_each(wanted: Sequence[Sampled], effort: Effort, speed: Speed) -> int:
    """The number of tokens of one share that the time allows, if no drafted token is accepted."""
    way = wanted[0].way
    rows = way.together * (K + 1)
    token = speed.seconds(rows) / way.together + 2 * speed.seconds(ROWS) / ROWS  # written, and read with its prompt
    return int(min(SHARE * effort.model_seconds / sum(one.share for one in wanted) / token, effort.sampled_tokens))


def _jobs(
    engine: Engine, sampled: Sampled, prompts: Sequence[CheckPrompt], tokens: int, rng: np.random.Generator
) -> Iterator[Job]:
    """Texts of `tokens` tokens in all, at least one for each slot if possible; each has its own seed."""
    shortest, longest = LENGTHS
    room = engine.target.capacity - max(len(prompt.tokens) for prompt in prompts)
    length = min(max(tokens // sampled.way.together, shortest), longest, room)
    grammar = own_grammar(engine) if sampled.in_grammar else None
    for i in range(max(tokens // length, 1)):
        seeded = replace(sampled.sampling, seed=int(rng.integers(2**53)))
        yield Job(sampled.name, prompts[i % len(prompts)], seeded, length, grammar)


def _score(engine: Engine, text: Written, evidence: Evidence, rng: np.random.Generator) -> None:
    """Read the text again, and add its tokens to the evidence."""
    evidence.begin()
    eos = set(engine.bundle.manifest.tokenizer.eos_token_ids) if text.job.grammar else set()
    expected = zip(_expected(engine, text, "target"), _expected(engine, text, "draft"), strict=False)
    for token, drafted, (target, draft) in zip(text.tokens, text.drafted, expected, strict=False):
        if not evidence.add(token, target, draft, drafted, float(rng.random())) or token in eos:
            break


def _expected(engine: Engine, text: Written, model: ModelName) -> Iterator[Probs]:
    """float64[vocab], the distribution of a model at the position of each token.

    It is uniform if the bundle has no such model, or one whose context is too short, and where a draft with few tokens
    knows none that the text can go on with.
    """
    vocab = engine.bundle.manifest.tokenizer.vocab_size
    entry = engine.bundle.manifest.models.get(model)
    prompt = text.job.prompt
    tokens = [*prompt.tokens, *text.tokens]
    scored = None
    short = entry is not None and (entry.encoder is None or len(prompt.source) <= entry.encoder.context_length)
    if entry is not None and short and len(tokens) <= entry.context_length + 1:
        with suppress(ContextLengthError):  # of a draft that makes more tokens of a text than the target
            scored = engine.score(tokens[:-1], source=prompt.source or None, model=model)
    if scored is None:
        yield from (np.full(vocab, 1 / vocab) for _ in text.tokens)
        return
    shaper = text.job.shaper(engine, ignore_eos=True)  # a grammar may end the text: the shaper knows where
    rows = chain.from_iterable(scored)
    for token, row in zip(text.tokens, islice(rows, len(prompt.tokens) - 1, None), strict=True):
        try:
            yield shaper.distribution(row).probabilities(None, vocab)
        except NoTokenError:  # of a draft with few tokens, which proposes nothing here
            if model == "target":
                raise
            yield np.full(vocab, 1 / vocab)
        shaper.keep([token])
