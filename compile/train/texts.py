"""The texts that a head is trained on: of a file, or written by the target itself.

A source gives the texts with some numbers, fewer where it has no more. Each depends on its number and the seed alone,
so a run that was killed goes on with the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.formats.errors import RecipeError
from mxspec.runtime.calibration_text.openings import WORDS, chat_template, openings_of, question_openings, user_turn
from mxspec.runtime.calibration_text.write import Choose, continue_texts, sampled
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import argmax_tokens
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

LENGTH = 256  # tokens of a text, with the question: what an answer begins with is the hardest to guess
QUESTION = 64  # tokens of a question that a model invents
_QUESTIONS, _ANSWERS = 0, 1  # of the random numbers for a text


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Token ids; those from number `begin` on are what the target wrote."""

    ids: list[int]
    begin: int = 0


Source = Callable[[Sequence[int]], list[TrainingText]]


@dataclass(frozen=True, slots=True)
class TrainingWriter:
    """A target that writes texts of up to `length` tokens, of which one of the `ends` is the last."""

    session: Session
    tokenizer: Tokenizer
    folder: Path
    ends: frozenset[int]
    length: int
    seed: int

    def answer(self, numbers: Sequence[int], prompts: Sequence[Sequence[int]]) -> list[TrainingText]:
        """Answers, half of them greedy: those with numbers 0, 1, 4, 5, 8, 9 ..."""
        kept = [list(prompt[-self.length // 2 :]) for prompt in prompts]
        choices: list[Choose] = [
            _likeliest if number // 2 % 2 == 0 else sampled([self.seed, _ANSWERS, number], self.length)
            for number in numbers
        ]
        texts = continue_texts(self.session, kept, choices, self.length, _untold, self.ends)
        return [TrainingText(ids, len(prompt)) for ids, prompt in zip(texts, kept, strict=True)]

    def ask(self, numbers: Sequence[int], turn: Sequence[int], words: Sequence[Sequence[int]]) -> list[str]:
        """Questions that the target invents where a user's turn begins (Xu et al. 2024).

        Every other one goes on from some of the `words` that questions often begin with: left alone, a model asks for
        what it was taught with, in long texts, and seldom a short question.
        """
        added = self.tokenizer.get_added_tokens_decoder()
        ends = self.ends | {number for number, token in added.items() if token.special}
        length = min(len(turn) + QUESTION, self.length // 2)
        choices = [sampled([self.seed, _QUESTIONS, number], length) for number in numbers]
        begun = [[*turn, *(words[number // 2 % len(words)] if number % 2 else [])] for number in numbers]
        texts = continue_texts(self.session, begun, choices, length, _untold, ends)
        asked = (self.tokenizer.decode(text[len(turn) :], skip_special_tokens=True).strip() for text in texts)
        lines = WORDS.read_text(encoding="utf-8").splitlines()
        return [text or lines[number % len(lines)] for text, number in zip(asked, numbers, strict=True)]


def file_texts(ids: NDArray[np.int32], length: int) -> Source:
    """A file's text in pieces of `length` tokens; the last one is left out if it is shorter."""
    count = len(ids) // length
    return lambda numbers: [
        TrainingText(ids[number * length : (number + 1) * length].tolist()) for number in numbers if number < count
    ]


def answered(prompts: Sequence[str], writer: TrainingWriter) -> Source:
    """The target's answers to prompts; without a chat template it continues them. Raises GenerationError."""
    template = chat_template(writer.folder)

    def texts(numbers: Sequence[int]) -> list[TrainingText]:
        known = [number for number in numbers if number < len(prompts)]
        return writer.answer(known, [_prompt(prompts[number], template, writer.tokenizer) for number in known])

    return texts


def invented(writer: TrainingWriter) -> Source:
    """The target's answers to questions of its own, or texts of its own without a chat template."""
    template, turn = chat_template(writer.folder), user_turn(writer.folder, writer.tokenizer)
    if template is not None and 0 < len(turn) < writer.length // 4:
        words = question_openings(writer.tokenizer)
        return lambda numbers: writer.answer(
            numbers, [_prompt(question, template, writer.tokenizer) for question in writer.ask(numbers, turn, words)]
        )
    openings = openings_of(writer.folder, writer.tokenizer)
    return lambda numbers: writer.answer(numbers, [openings[number % len(openings)] for number in numbers])


def read_prompts(text: str, where: str) -> list[str]:
    """The prompts in a text, one a line. Raises RecipeError if there are fewer than ten."""
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if len(prompts) < 10:
        raise RecipeError(f"{where}: got {len(prompts)} prompts, one a line, expected at least 10")
    return prompts


def _prompt(question: str, template: ChatTemplate | None, tokenizer: Tokenizer) -> list[int]:
    if template is None:
        return encode_prompt(tokenizer, question, None)
    return encode_rendered(tokenizer, template.render([{"role": "user", "content": question}]))


def _likeliest(logits: NDArray[np.float32], number: int) -> int:
    return int(argmax_tokens(logits[None])[0])


def _untold(count: int) -> None:
    """Progress is told by whole texts."""
