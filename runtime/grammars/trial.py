"""Grammars are tried by processes of their own before they are compiled here.

A stranger's grammar can take minutes, all memory, or more stack than there is, which ends a process. So one that has
limits (trial_child.py) compiles it first and takes some steps in it. What was found good is compiled again here, in
threads that have at least twice that stack (Rust's have 2 MiB, others usually 8).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError, UnavailableError
from mxspec.runtime.grammars.grammar import Grammar, vocabulary_of, vocabulary_parts
from mxspec.runtime.grammars.matcher import Matcher
from mxspec.runtime.guarded.fork_server import ForkServer, ProcessEndedError, RefusedError, TooSlowError
from mxspec.runtime.guarded.process_quota import GiveUp, ProcessQuota

LONGEST = 1 << 19  # bytes of a grammar
SECONDS = 1.0  # of processor time; a schema of 500 fields takes 0.015, an enum of 20,000 texts 0.18
QUICK_SECONDS = 0.1  # after which a grammar has to wait for others that are as slow, so that none waits for them
PROCESSES = 12  # that try grammars at the same time
SLOW_PROCESSES = 2  # that try slow ones
COMPILING = 1  # quick ones that are compiled here at the same time, and as many slow ones: texts need the processor
KEPT = 1024  # verdicts


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """What a trial found: the grammar's error, empty if it is good, and whether it was slow."""

    error: str
    slow: bool


class Trial:
    """Tries the grammars of one tokenizer, and compiles the good ones; from any number of threads."""

    def __init__(self, tokenizer: Tokenizer, eos: Collection[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._eos = frozenset(eos)
        self._vocab_size = vocab_size
        self._verdicts: OrderedDict[bytes, TrialVerdict] = OrderedDict()  # by the grammar's hash
        self._lock = threading.Lock()
        self._quotas = ProcessQuota(PROCESSES), ProcessQuota(SLOW_PROCESSES)
        self._compiling = ProcessQuota(COMPILING), ProcessQuota(COMPILING)
        self._forks: ForkServer | None = None

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            if self._forks is not None:
                self._forks.close()

    def warm(self) -> None:
        """Make what all grammars need; raises GenerationError. It takes up to a second and stops other threads."""
        vocabulary_of(self._tokenizer, self._eos, self._vocab_size)

    def compile(self, grammar: Grammar, give_up: GiveUp = lambda: False) -> Matcher:
        """A matcher at the beginning of a text, whose first mask is known; raises GenerationError.

        `give_up` is called now and then; once it is true, GivenUpError is raised.
        """
        slow = self.check(grammar, give_up).slow
        with self._compiling[slow].entered(give_up):
            matcher = grammar.compile(self._tokenizer, self._eos, self._vocab_size)
            matcher.mask(())
        return matcher

    def check(self, grammar: Grammar, give_up: GiveUp = lambda: False) -> TrialVerdict:
        """The verdict on a good grammar.

        Raises GenerationError for one that is invalid, too large, or takes too much to be used.
        """
        text = grammar.text.encode("utf-8", "surrogatepass")
        if len(text) > LONGEST:
            raise GenerationError("grammar", f"got {len(text):,} bytes, expected at most {LONGEST:,}")
        key = hashlib.sha256(grammar.kind.encode() + b"\0" + text).digest()
        with self._lock:
            verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._try(grammar, give_up)
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > KEPT:
                    self._verdicts.popitem(last=False)
        if verdict.error:
            raise GenerationError("grammar", verdict.error)
        return verdict

    def _try(self, grammar: Grammar, give_up: GiveUp) -> TrialVerdict:
        quick, slow = self._quotas
        try:
            with suppress(TooSlowError):
                return TrialVerdict(self._ask(QUICK_SECONDS, grammar, give_up, quick), slow=False)
            return TrialVerdict(self._ask(SECONDS, grammar, give_up, slow), slow=True)
        except ProcessEndedError as error:  # which says nothing of the grammar
            raise UnavailableError("grammar", str(error)) from None
        except RefusedError as error:
            return TrialVerdict(str(error), slow=False)

    def _ask(self, seconds: float, grammar: Grammar, give_up: GiveUp, quota: ProcessQuota) -> str:
        return self._processes().ask(seconds, grammar.kind, grammar.text, give_up=give_up, quota=quota)

    def _processes(self) -> ForkServer:
        self.warm()  # raises here what would end a process
        with self._lock:
            if self._forks is None:
                parts = vocabulary_parts(self._tokenizer, self._eos, self._vocab_size)
                self._forks = ForkServer("mxspec.runtime.grammars.trial_child", *parts)
            return self._forks
