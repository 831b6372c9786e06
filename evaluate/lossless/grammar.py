"""A grammar that any pair can keep to: some of its own tokens, in any order."""

from __future__ import annotations

import importlib.util
import re

from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import Engine
from mxspec.runtime.sampling.grammar import Grammar

WORDS, MOST_LENGTH = 24, 200


def own_grammar(engine: Engine) -> Grammar:
    """Raises GenerationError where llguidance is not installed, or does not know the tokenizer."""
    if importlib.util.find_spec("llguidance") is None:
        raise GenerationError("llguidance is not installed (pip install 'mxspec[grammar]')")
    entry = engine.bundle.manifest.tokenizer
    texts = dict.fromkeys(engine.tokenizer.decode([token]) for token in range(entry.vocab_size))
    words = [text for text in texts if text.strip() and text.isascii() and text.isprintable()]
    if len(words) < 2:
        raise GenerationError("the vocabulary has no words to make one of")
    some = words[:: max(len(words) // WORDS, 1)][:WORDS]
    grammar = Grammar.regex(f"({'|'.join(re.escape(word) for word in some)}){{4,{MOST_LENGTH}}}")
    grammar.compile(engine.tokenizer, entry.eos_token_ids, entry.vocab_size)
    return grammar
