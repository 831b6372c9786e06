"""Where one text stands in its grammar, and where it would stand after each drafted token."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.mask import TokenMask

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_MAX_THREADS = 8  # masks take microseconds: more threads only wait for each other


class Matcher:
    """A text in a grammar: `ahead` are tokens after the text that are taken as accepted.

    The machine of the text (llguidance) only moves forward; a look-ahead is fed to a copy, which takes microseconds.
    Not to the machine with a rollback: llguidance 1.9.1 keeps the last mask by lexer state and row number, a rollback
    leaves it there, and another look-ahead of as many rows is then given the mask of the first. An end-of-text token is
    never fed either. What comes after one, or after a token that the grammar refuses, is never emitted, and nothing is
    masked there.
    """

    def __init__(self, machine: LLMatcher, vocabulary: LLTokenizer, eos: Collection[int], vocab_size: int) -> None:
        self._machine = machine
        self._eos = frozenset(eos)
        self._vocab_size = vocab_size
        self._words = -(-vocabulary.vocab_size // 32)
        self._eos_bits = _bits(self._eos, vocab_size)
        self._text_bits = _bits(range(vocab_size), vocab_size) & ~_bits([*eos, *vocabulary.eos_tokens], vocab_size)
        self._path: list[int] = []  # the look-ahead
        self._scout = machine  # where the copy stands: after `_fed` tokens of the path
        self._fed = 0
        self._masks: dict[int, TokenMask | None] = {}  # by length of the look-ahead
        self._ended = False

    @property
    def complete(self) -> bool:
        """True where the text is a sentence that nothing can follow. Costs a mask where the text could go on or end."""
        if self._ended:
            return True
        if not self._machine.is_accepting():
            return False
        mask = None if self._machine.is_stopped() else self.mask(())
        return mask is None or mask.within(self._eos_bits)

    def mask(self, ahead: Sequence[int]) -> TokenMask | None:
        """The tokens that may come next, an end where the grammar allows one; None where nothing is masked."""
        if self.lacks(ahead):
            bits = np.empty(self._words, np.uint32)
            self._scout.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            self._store(len(ahead), bits)
        return self._masks[len(ahead)]

    def lacks(self, ahead: Sequence[int]) -> bool:
        """True where the mask is to be computed: the scout then stands there."""
        self._follow(ahead)
        if len(ahead) not in self._masks and not self._feed(len(ahead)):
            self._masks[len(ahead)] = None
        return len(ahead) not in self._masks

    def forced(self, ahead: Sequence[int]) -> list[int]:
        """The tokens that must follow, as far as the text of the grammar leaves no choice."""
        self._follow(ahead)
        if not self._feed(len(ahead)):
            return []
        tokens = self._scout.compute_ff_tokens()
        unusable = (i for i, token in enumerate(tokens) if token in self._eos or token >= self._vocab_size)
        return tokens[: next(unusable, len(tokens))]

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens belong to the text now; an end-of-text token can only be the last."""
        self._follow(tokens)
        if not self._feed(len(tokens)):
            assert self._path[self._fed] in self._eos, "a token was kept that the grammar does not allow"
            self._ended = True
        count = len(tokens)
        self._path = self._path[count:]
        self._masks = {length - count: mask for length, mask in self._masks.items() if length >= count}
        self._machine, self._fed = self._scout, 0

    def _follow(self, ahead: Sequence[int]) -> None:
        """Let the path begin with `ahead`, and forget what does not lie on it."""
        shared = 0
        while shared < min(len(ahead), len(self._path)) and ahead[shared] == self._path[shared]:
            shared += 1
        if shared == len(ahead):
            return
        if self._fed > shared:
            self._scout, self._fed = self._machine, 0
        self._masks = {length: mask for length, mask in self._masks.items() if length <= shared}
        self._path[shared:] = ahead[shared:]

    def _feed(self, length: int) -> bool:
        """Let the scout stand after so many tokens of the path; False where an end or a refused token is before it."""
        if self._fed > length:
            self._scout, self._fed = self._machine, 0
        tokens = self._path[self._fed : length]
        end = next((i for i, token in enumerate(tokens) if token in self._eos), len(tokens))
        if end and not self._ended:
            if self._scout is self._machine:
                self._scout = self._machine.deep_copy()
            self._fed += self._scout.try_consume_tokens(tokens[:end])
            self._check()
        return self._fed == length and not self._ended

    def _store(self, length: int, bits: NDArray[np.uint32]) -> None:
        """Keep a mask of the machine, with our ends in it instead of the machine's."""
        self._check()
        bits = bits[: len(self._text_bits)] & self._text_bits
        accepting = self._scout.is_accepting()
        if accepting:
            bits |= self._eos_bits
        self._masks[length] = TokenMask(bits, self._vocab_size) if not accepting or bits.any() else None

    def _check(self) -> None:
        if self._scout.is_error():
            raise GenerationError(f"grammar: {one_line(self._scout.get_error())}")


def fill_masks(jobs: Sequence[tuple[Matcher, Sequence[int]]]) -> None:
    """Compute the masks of every length of each look-ahead, those of one length in parallel."""
    for length in range(max((len(ahead) for _, ahead in jobs), default=-1) + 1):
        lacking = [matcher for matcher, ahead in jobs if length <= len(ahead) and matcher.lacks(ahead[:length])]
        _fill(lacking, length)


def _fill(matchers: Sequence[Matcher], length: int) -> None:
    if not matchers:
        return
    bits = np.empty((len(matchers), matchers[0]._words), np.uint32)
    places = [(matcher._scout, i) for i, matcher in enumerate(matchers)]
    _executor().unsafe_compute_mask_ptr(places, bits.ctypes.data, bits[0].nbytes, len(matchers))
    for matcher, row in zip(matchers, bits, strict=True):
        matcher._store(length, row)


@cache
def _executor() -> LLExecutor:
    """The threads that compute masks."""
    from llguidance import LLExecutor

    return LLExecutor(min(len(os.sched_getaffinity(0)), _MAX_THREADS))


def _bits(tokens: Collection[int], vocab_size: int) -> NDArray[np.uint32]:
    """uint32[ceil(vocab / 32)] with the bits of these tokens."""
    flags = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    flags[[token for token in tokens if token < vocab_size]] = True
    return np.packbits(flags, bitorder="little").view(np.uint32)


def one_line(message: str) -> str:
    """A message of many lines as one."""
    return " ".join(message.split())
