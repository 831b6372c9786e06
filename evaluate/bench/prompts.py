"""Prompts of measurements: stretches of a text or of random tokens, questions; for encoders, lines of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import read_text
from mxspec.runtime.engine import Engine
from mxspec.runtime.text.tokenizer import encode_rendered, load_tokenizer

PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts from a text, from questions, or of random tokens; at least `least` of them, unless there are fewer.

    A model with an encoder reads lines of the text, or random sources.
    """

    text: str | None
    questions: tuple[str, ...] | None
    least: int

    @property
    def goes_on(self) -> bool:
        """Whether answers go on after an end of text: what continues a text does, an answer does not."""
        return self.questions is None

    def sets(self, engine: Engine, context: int, batch: int, new_tokens: int) -> list[list[list[int]]]:
        """Token ids of prompts, `batch` at a time, which are answered together.

        Raises MxspecError if the text is too short, or the context for a prompt and `new_tokens` tokens.
        """
        count = max(-(-self.least // batch), 1) * batch
        if self.questions is not None:
            found = self._asked(engine, self.questions)
        elif engine.target.encoder is not None:
            found = self._sources(engine, context, count)
        else:
            found = self._stretches(engine, context, count)
        require_context(engine.bundle, max(map(len, found)), new_tokens)
        return [found[i : i + batch] for i in range(0, len(found), batch)]

    def _asked(self, engine: Engine, questions: Sequence[str]) -> list[list[int]]:
        """Each question as the bundle's chat template shows it to the model."""
        if engine.template is None:
            raise MxspecError(
                f"--questions: {engine.bundle.path} has no chat template; give --text, which it continues"
            )
        rendered = (engine.template.render([{"role": "user", "content": question}]) for question in questions)
        return [encode_rendered(engine.tokenizer, text) for text in rendered]

    def _sources(self, engine: Engine, context: int, count: int) -> list[list[int]]:
        most = engine.target.source_capacity
        if self.text is None:
            return _random_ids(engine, count * min(context, most), min(context, most))
        lines = [line for line in self.text.splitlines() if line.strip()]
        sources = [engine.encode(line) for line in lines[:: max(len(lines) // count, 1)][:count]]
        for source in sources:
            if len(source) > most:
                raise MxspecError(
                    f"--text: has a line of {len(source):,} tokens, expected at most {most:,}, the context of the "
                    "encoder"
                )
        return sources

    def _stretches(self, engine: Engine, context: int, count: int) -> list[list[int]]:
        if self.text is None:
            return _random_ids(engine, count * context, context)
        token_ids = engine.encode(self.text)
        if len(token_ids) < context + count:
            raise MxspecError(
                f"--text: holds {len(token_ids):,} tokens, but {count} prompts of {context:,} tokens take at least "
                f"{context + count:,}"
            )
        return prompts_of(token_ids, count, context)


def _random_ids(engine: Engine, count: int, length: int) -> list[list[int]]:
    ids = np.random.default_rng(0).integers(0, engine.bundle.manifest.tokenizer.vocab_size, (count // length, length))
    found: list[list[int]] = ids.tolist()
    return found


def read_questions(file: Path) -> tuple[str, ...]:
    """The questions in a UTF-8 file, one a line. Raises MxspecError for a file without a question."""
    questions = tuple(line.strip() for line in read_text(file, "--questions").splitlines() if line.strip())
    if not questions:
        raise MxspecError(f"--questions {file}: got no questions, expected one a line")
    return questions


def read_tokens(bundle: Path, text_file: Path | None, prompts: int) -> list[int]:
    """Tokens of the text, or random ids without a text."""
    opened = Bundle.open(bundle)
    if text_file is None:
        ids = np.random.default_rng(0).integers(0, opened.manifest.tokenizer.vocab_size, prompts * PROMPT_TOKENS)
        return [int(token) for token in ids]
    return list(load_tokenizer(opened.tokenizer_path).encode(read_text(text_file, "--text")).ids)


def prompts_of(token_ids: Sequence[int], count: int, length: int = PROMPT_TOKENS) -> list[list[int]]:
    """`count` stretches of a text, each of `length` tokens, spread evenly."""
    step = max((len(token_ids) - length) // count, 1)
    found = [list(token_ids[i * step : i * step + length]) for i in range(count)]
    return [prompt for prompt in found if prompt]


def require_context(bundle: Bundle, prompt_tokens: int, new_tokens: int) -> None:
    """Raises MxspecError if target or draft cannot hold prompt and answer; with an encoder, only the answer counts."""
    for name, entry in bundle.manifest.models.items():
        before = prompt_tokens if entry.encoder is None else len(bundle.manifest.tokenizer.decoder_start)
        most = entry.context_length - before
        if name != "baseline" and new_tokens > most:
            raise MxspecError(
                f"--new-tokens: got {new_tokens:,} after prompts of {before:,} tokens, but the context of the "
                f"bundle's {name} is {entry.context_length:,} tokens: expected at most {max(most, 0):,}"
            )
