"""The child of trial.py: compiles a grammar and takes some steps in it, within limits of time, memory and stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.grammar import Grammar, make_vocabulary
from mxspec.runtime.grammars.matcher import check_spelling, one_line
from mxspec.runtime.guarded.forking import Answer, Bounds, fork_for_each

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

BOUNDS = Bounds(memory_bytes=256 << 20, stack_bytes=1 << 20)
STEPS = 32
STEP_SECONDS = 0.1  # of processor time; texts beside this one wait for each step


def prepare(tokenizer: str, size: int, ends: list[int]) -> Answer:
    """A function that tries a grammar of this vocabulary: empty if it is good, GenerationError if not."""
    vocabulary = make_vocabulary(tokenizer, size, ends)

    def answer(kind: str, text: str) -> str:
        machine = Grammar(kind, text).machine(vocabulary)  # type: ignore[arg-type]
        copy = machine.deep_copy()
        _walk(machine, vocabulary)
        del machine, copy  # which may recurse, too
        return ""

    return answer


def _walk(machine: LLMatcher, vocabulary: LLTokenizer) -> None:
    """Take random steps; raises GenerationError where the first one fails, or where one takes too long."""
    draws = np.random.default_rng(0)
    for step in range(STEPS):
        began = time.process_time()
        bits = np.frombuffer(machine.compute_bitmask(), np.uint8)
        machine.compute_ff_tokens()
        if machine.is_error():
            if step == 0:
                raise GenerationError("grammar", f"{one_line(machine.get_error())}")
            return  # some texts of it grow too large: those end
        check_spelling(machine, vocabulary, bits.view(np.uint32))
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if machine.is_stopped() or not len(allowed):
            return
        machine.consume_token(int(draws.choice(allowed)))
        if time.process_time() - began > STEP_SECONDS:
            raise GenerationError("grammar", f"finding the next token took more than {STEP_SECONDS:g} seconds")


if __name__ == "__main__":
    fork_for_each(prepare, BOUNDS)
