"""A text to write, the ways in which an engine can write it, and what it writes."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mxspec.evaluate.lossless.drafters import RandomDrafter
from mxspec.evaluate.lossless.prompts import CheckPrompt
from mxspec.formats.errors import GenerationError
from mxspec.formats.sampling import DRAWN, PARAMETERS
from mxspec.runtime import ops
from mxspec.runtime.drafters.drafter import Drafter, ProposalKind
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.handle import Handle
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.settings import K

_CHOOSING = PARAMETERS.keys() - {"seed"}  # fields of a request that choose tokens
WORDS, MOST_LENGTH = 24, 200


@dataclass(frozen=True, slots=True)
class Job:
    """A text to write."""

    kind: str  # in words
    prompt: CheckPrompt
    sampling: Sampling
    length: int
    grammar: Grammar | None = None

    def shaper(self, engine: Engine, *, ignore_eos: bool) -> Shaper:
        """A new shaper of the text's tokens, not shared with the engine."""
        manifest, entry = engine.bundle.manifest, engine.bundle.manifest.tokenizer
        grammar = None
        if self.grammar is not None:
            grammar = self.grammar.compile(engine.tokenizer, entry.eos_token_ids, entry.vocab_size)
        room = engine.target.capacity + 1 - len(self.prompt.tokens)
        return Shaper(
            self.sampling,
            self.prompt.tokens,
            vocab_size=entry.vocab_size,
            eos=entry.eos_token_ids,
            grammar=grammar,
            rules=manifest.generation,
            limit=None if ignore_eos or grammar is not None else min(self.length, room),
        )


@dataclass(frozen=True, slots=True)
class Way:
    """How an engine writes: drafter, K, number of texts at a time, and number of threads."""

    drafter: Drafter
    k: K
    together: int = 1
    threads: int = 1
    verifier: str | None = None
    proposal: ProposalKind | None = None
    ignore_eos: bool = False

    def __str__(self) -> str:
        texts, threads = ("" if count == 1 else "s" for count in (self.together, self.threads))
        how = [f"drafter {self.drafter.name}", f"K {self.k}"]
        how += [f"verifier {self.verifier}"] if self.verifier else []
        how += ["greedy proposal"] if self.proposal == "greedy" else []
        return ", ".join([*how, f"{self.together} text{texts} at a time", f"{self.threads} thread{threads}"])

    @property
    def _repeatable(self) -> bool:
        """Whether a seed gives the same text each time."""
        return self.verifier == "match" or (self.k != "auto" and self.drafter.repeatable)

    def request(self, job: Job) -> Request:
        """The job as a request without the bundle's defaults."""
        chosen = _CHOOSING - set(DRAWN) if job.sampling.greedy else _CHOOSING
        tokens, source = job.prompt.tokens, job.prompt.source
        return Request(
            prompt=source or tokens,
            decoder_prompt=tokens if source else None,
            max_new_tokens=job.length,
            k=self.k,
            drafter=self.drafter,
            verifier=None if job.sampling.greedy else self.verifier,
            proposal=None if job.sampling.greedy else self.proposal,
            ignore_eos=self.ignore_eos,
            grammar=job.grammar,
            cache_key=str(self),  # so that every way reads its own prompts
            **{name: getattr(job.sampling, name) for name in chosen},
            seed=job.sampling.seed if self._repeatable else None,
        )


@dataclass(slots=True)
class Written:
    """A text that an engine wrote: its tokens, which of them were at drafted positions, and its error, if any."""

    job: Job
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    error: str | None = None


def write_all(engine: Engine, jobs: Sequence[Job], way: Way) -> Iterator[Written]:
    """Yield the texts in order, written `way.together` at a time: when one ends, the next joins the others."""
    before = ops.threads()
    ops.set_threads(way.threads)
    running: list[tuple[Job, Handle]] = []
    try:
        for job in jobs:
            if len(running) == way.together:
                yield _read(*running.pop(0))
            running.append((job, engine.submit(way.request(job))))
        while running:
            yield _read(*running.pop(0))
    finally:
        for _, handle in running:
            handle.cancel()
        ops.set_threads(before)


def _read(job: Job, handle: Handle) -> Written:
    """Read all events of a text. An error that ends the text is a finding, not an error of the check."""
    text = Written(job)
    try:
        for event in handle:
            if isinstance(event, Token):
                text.tokens.append(event.id)
            elif isinstance(event, Round):
                judged = min(event.evaluated, event.emitted)
                text.drafted += [True] * judged + [False] * (event.emitted - judged)
    except Exception as error:
        text.error = f"{type(error).__name__}: {error}"
    return text


def guessing(engine: Engine) -> list[Drafter]:
    """The drafters of a bundle, its draft model first, without `none`; and one that guesses at random."""
    own = [drafter for name, drafter in engine.drafters.items() if name != "none"]
    drafters = [RandomDrafter(engine.bundle.manifest.tokenizer.vocab_size), *own]
    return sorted(drafters, key=lambda drafter: drafter.name != "model")


def penalised(sampling: Sampling) -> Sampling:
    """The same settings, with penalties."""
    return replace(sampling, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)


def own_grammar(engine: Engine) -> Grammar:
    """A grammar that any pair can keep to: some of the pair's tokens, in any order.

    Raises GenerationError if llguidance is not installed or does not know the tokenizer.
    """
    if importlib.util.find_spec("llguidance") is None:
        raise GenerationError("grammar", "llguidance is not installed (pip install 'mxspec[grammar]')")
    entry = engine.bundle.manifest.tokenizer
    texts = dict.fromkeys(engine.tokenizer.decode([token]) for token in range(entry.vocab_size))
    words = [text for text in texts if text.strip() and text.isascii() and text.isprintable()]
    if len(words) < 2:
        raise GenerationError("grammar", "the vocabulary has no words to make one of")
    some = words[:: max(len(words) // WORDS, 1)][:WORDS]
    grammar = Grammar.regex(f"({'|'.join(re.escape(word) for word in some)}){{4,{MOST_LENGTH}}}")
    grammar.compile(engine.tokenizer, entry.eos_token_ids, entry.vocab_size)
    return grammar
