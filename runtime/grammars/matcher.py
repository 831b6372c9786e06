"""Where one text stands in its grammar, and where it would stand after each drafted token."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.mask import TokenMask

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_MAX_MESSAGE = 300  # llguidance repeats the whole grammar
_MAX_THREADS = 8  # masks take microseconds: more threads only wait for each other


class Matcher:
    """A text in a grammar: `ahead` are tokens after the text that are taken as accepted.

    The machine of the text (llguidance) only moves forward; a look-ahead is fed to a copy, which takes microseconds.
    The machine itself cannot be rolled back: llguidance 1.9.1 keeps the last mask by lexer state and row number; a
    rollback leaves the mask, and another look-ahead of as many rows then gets it. An end-of-text token is
    never fed either. What comes after one, or after a token that the grammar refuses, is never emitted, and nothing is
    masked there.
    """

    def __init__(self, machine: LLMatcher, vocabulary: LLTokenizer, eos: Collection[int], vocab_size: int) -> None:
        self._machine = machine
        self._vocabulary = vocabulary
        self._eos = frozenset(eos)
        self._vocab_size = vocab_size
        self._words = -(-vocabulary.vocab_size // 32)
        self._eos_bits = _bits(self._eos, vocab_size)
        self._text_bits = _bits(range(vocab_size), vocab_size) & ~_bits([*eos, *vocabulary.eos_tokens], vocab_size)
        self._path: list[int] = []  # the look-ahead
        self._scout: LLMatcher | None = None  # a copy that has read `_fed` tokens of the path
        self._fed = 0
        self._masks: dict[int, TokenMask | None] = {}  # by length of the look-ahead
        self._ended = False

    def copy(self) -> Matcher:
        """Another text at the same place. It shares the lexer: the two wait for each other."""
        copy = Matcher(self._machine.deep_copy(), self._vocabulary, self._eos, self._vocab_size)
        copy._path, copy._masks, copy._ended = [*self._path], {**self._masks}, self._ended
        return copy

    @property
    def complete(self) -> bool:
        """True where the text is a sentence that nothing can follow. Costs a mask where the text could go on or end."""
        return self._ended or self.completed(())

    def completed(self, ahead: Sequence[int]) -> bool:
        """`complete` after the text and `ahead`, which the grammar allows and which holds no end-of-text token."""
        self._follow(ahead)
        machine = self._stand(len(ahead))
        if machine is None or not machine.is_accepting():
            return False
        mask = None if machine.is_stopped() else self.mask(ahead)
        return mask is None or mask.within(self._eos_bits)

    def mask(self, ahead: Sequence[int]) -> TokenMask | None:
        """The tokens that may come next, an end where the grammar allows one; None where nothing is masked."""
        machine = self._lacking(ahead)
        if machine is not None:
            bits = np.empty(self._words, np.uint32)
            machine.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            self._store(len(ahead), machine, bits)
        return self._masks[len(ahead)]

    def forced(self, ahead: Sequence[int]) -> list[int]:
        """The tokens that must follow, as far as the text of the grammar leaves no choice."""
        self._follow(ahead)
        machine = self._stand(len(ahead))
        tokens = machine.compute_ff_tokens() if machine is not None else []
        if machine is not None and any(map(self._vocabulary.is_special_token, tokens)):
            tokens = tokens[: machine.deep_copy().try_consume_tokens(tokens)]
        unusable = (i for i, token in enumerate(tokens) if token in self._eos or token >= self._vocab_size)
        return tokens[: next(unusable, len(tokens))]

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens belong to the text now; an end-of-text token can only be the last."""
        self._follow(tokens)
        count, end = len(tokens), self._end(tokens)
        if end and not self._ended:
            taken = self._machine.try_consume_tokens(list(tokens[:end]))
            _check(self._machine)
            assert taken == end, "a token was kept that the grammar does not allow"
        self._ended |= end < count
        self._path = self._path[count:]
        self._masks = {length - count: mask for length, mask in self._masks.items() if length >= count}
        self._fed -= count
        if self._fed <= 0:
            self._scout = None

    def _lacking(self, ahead: Sequence[int]) -> LLMatcher | None:
        """The machine that can compute the mask after `ahead`; None where the mask is known."""
        self._follow(ahead)
        length = len(ahead)
        if length in self._masks:
            return None
        machine = self._stand(length)
        if machine is None:
            self._masks[length] = None
        return machine

    def _follow(self, ahead: Sequence[int]) -> None:
        """Let the path begin with `ahead`, and forget what does not lie on it."""
        shared = 0
        while shared < min(len(ahead), len(self._path)) and ahead[shared] == self._path[shared]:
            shared += 1
        if shared == len(ahead):
            return
        if self._fed > shared:
            self._scout = None
        self._masks = {length: mask for length, mask in self._masks.items() if length <= shared}
        self._path[shared:] = ahead[shared:]

    def _stand(self, length: int) -> LLMatcher | None:
        """The machine after `length` tokens of the path; None after an end or a token that the grammar refuses."""
        if self._ended or length == 0:
            return None if self._ended else self._machine
        if self._scout is None or self._fed > length:
            self._scout, self._fed = self._machine.deep_copy(), 0
        tokens = self._path[self._fed : length]
        self._fed += self._scout.try_consume_tokens(tokens[: self._end(tokens)])
        _check(self._scout)
        return self._scout if self._fed == length else None

    def _end(self, tokens: Sequence[int]) -> int:
        """Number of tokens before the first end of text."""
        return next((i for i, token in enumerate(tokens) if token in self._eos), len(tokens))

    def _store(self, length: int, machine: LLMatcher, bits: NDArray[np.uint32]) -> None:
        """Keep a mask of the machine, with our ends in it instead of the machine's."""
        _check(machine)
        bits = bits[: len(self._text_bits)] & self._text_bits
        check_spelling(machine, self._vocabulary, bits)
        accepting = machine.is_accepting()
        if accepting:
            bits |= self._eos_bits
        self._masks[length] = TokenMask(bits, self._vocab_size) if not accepting or bits.any() else None


def fill_masks(jobs: Sequence[tuple[Matcher, Sequence[int]]]) -> None:
    """Compute the masks of every length of each look-ahead, those of one length in parallel."""
    for length in range(max((len(ahead) for _, ahead in jobs), default=-1) + 1):
        lacking = []
        for matcher, ahead in jobs:
            with suppress(GenerationError):  # raised again where the mask is asked for: only that text ends
                machine = matcher._lacking(ahead[:length]) if length <= len(ahead) else None
                lacking += [(matcher, machine)] if machine is not None else []
        if lacking:
            _fill(lacking, length)


def _fill(lacking: Sequence[tuple[Matcher, LLMatcher]], length: int) -> None:
    bits = np.empty((len(lacking), lacking[0][0]._words), np.uint32)
    places = [(machine, i) for i, (_, machine) in enumerate(lacking)]
    _executor(os.getpid()).unsafe_compute_mask_ptr(places, bits.ctypes.data, bits[0].nbytes, len(lacking))
    for (matcher, machine), row in zip(lacking, bits, strict=True):
        with suppress(GenerationError):
            matcher._store(length, machine, row)


def _check(machine: LLMatcher) -> None:
    if machine.is_error():
        raise GenerationError("grammar", f"{one_line(machine.get_error())}")


def check_spelling(machine: LLMatcher, vocabulary: LLTokenizer, bits: NDArray[np.uint32]) -> None:
    """Raise GenerationError if a mask has only a control token, for text that spells it.

    llguidance encodes text that must follow as the tokenizer would, and then refuses the token: it stands for no text.
    """
    words = np.flatnonzero(bits)
    if len(words) != 1 or int(bits[words[0]]).bit_count() != 1:
        return
    token = 32 * int(words[0]) + int(bits[words[0]]).bit_length() - 1
    if token in vocabulary.eos_tokens or not vocabulary.is_special_token(token):
        return
    if not machine.deep_copy().try_consume_tokens([token]):
        name = vocabulary.decode_str([token])
        raise GenerationError("grammar", f"spells {name}, one token of this model; Lark has it without quotes")


@cache
def _executor(process: int) -> LLExecutor:
    """The threads that compute masks: a forked child has none of its parent's, and would wait for them for ever."""
    from llguidance import LLExecutor

    return LLExecutor(min(len(os.sched_getaffinity(0)), _MAX_THREADS))


def _bits(tokens: Collection[int], vocab_size: int) -> NDArray[np.uint32]:
    """uint32[ceil(vocab / 32)] with the bits of these tokens."""
    flags = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    flags[[token for token in tokens if token < vocab_size]] = True
    return np.packbits(flags, bitorder="little").view(np.uint32)


def one_line(message: str) -> str:
    """A message of several lines as one line, shortened, without the state that llguidance adds."""
    line = " ".join(message.partition("<state>")[0].split())
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]} …"
