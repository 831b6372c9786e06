"""Prompts of benchmarks: stretches of a text or of random tokens, questions; for encoders, lines of a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxspec.evaluate.accuracy.documents import read_lines
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import read_text
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered, load_tokenizer

PROMPT_TOKENS = 64


def read_prompts(
    bundle: Path, text_file: Path | None, count: int, source_tokens: int = PROMPT_TOKENS
) -> list[list[int]]:
    """Up to `count` prompts: stretches of the text or, for models with encoders, lines of it.

    Without a text the prompts are random ids; sources have `source_tokens` of them, or as many as the encoder holds.
    """
    opened = Bundle.open(bundle)
    encoder = opened.manifest.models["target"].encoder
    if encoder is None:
        return prompts_of(read_tokens(bundle, text_file, count), count)
    if text_file is None:
        most, vocab = min(source_tokens, encoder.context_length), opened.manifest.tokenizer.vocab_size
        random: list[list[int]] = np.random.default_rng(0).integers(0, vocab, (count, most)).tolist()
        return random
    tokenizer, bos = load_tokenizer(opened.tokenizer_path), opened.manifest.tokenizer.bos_token_id
    lines = [line for line in read_lines(text_file, "--text") if line.strip()]
    some = lines[:: max(len(lines) // count, 1)][:count]
    sources = [encode_prompt(tokenizer, line, bos) for line in some]
    for source in sources:
        if len(source) > encoder.context_length:
            raise MxspecError(
                f"--text {text_file}: has a line of {len(source):,} tokens, expected at most "
                f"{encoder.context_length:,}, the context of the encoder"
            )
    return sources


def read_questions(bundle: Path, file: Path) -> list[list[int]]:
    """The questions in a UTF-8 file, one a line, each as the bundle's chat template shows it to the model.

    Raises MxspecError for a file without a question, and for a bundle without a template.
    """
    opened = Bundle.open(bundle)
    template, tokenizer = ChatTemplate.of(opened), load_tokenizer(opened.tokenizer_path)
    if template is None:
        raise MxspecError(f"--questions: {bundle} has no chat template; give --text, which it continues")
    questions = [line.strip() for line in read_text(file, "--questions").splitlines() if line.strip()]
    if not questions:
        raise MxspecError(f"--questions {file}: got no questions, expected one a line")
    rendered = (template.render([{"role": "user", "content": question}]) for question in questions)
    return [encode_rendered(tokenizer, text) for text in rendered]


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
