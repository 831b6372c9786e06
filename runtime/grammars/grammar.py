"""A grammar that the text must keep to, as a request says it: a JSON schema, a regular expression, or Lark."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.matcher import Matcher, one_line
from mxspec.runtime.text.panics import guarded

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


@dataclass(frozen=True, slots=True)
class Grammar:
    """What kind of grammar, and its text."""

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """Text is a JSON value of this schema (https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md)."""
        try:
            value = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise GenerationError(f"grammar: got a JSON schema that is not JSON: {one_line(str(error))}") from error
        if not isinstance(value, Mapping):
            raise GenerationError(f"grammar: got {text[:60]} as JSON schema, expected an object such as {{}}")
        return cls("json_schema", text)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """The whole text matches the pattern (https://docs.rs/regex/latest/regex/#syntax; no look-around)."""
        return cls("regex", _text(pattern, "a regular expression"))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """The text is a sentence of `start` (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md)."""
        return cls("lark", _text(grammar, "a Lark grammar"))

    def compile(self, tokenizer: Tokenizer, eos: Collection[int], vocab_size: int) -> Matcher:
        """A matcher at the beginning of a text; GenerationError if the grammar does not parse or llguidance is missing.

        A tokenizer's first grammar takes about a second, a large one as long: call it outside the engine's thread.
        """
        vocabulary = _vocabulary(tokenizer, frozenset(eos), vocab_size)
        return Matcher(_machine(self, vocabulary), vocabulary, eos, vocab_size)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise GenerationError(f"grammar: got {value!r}, expected {what} as a string")
    return value


def _machine(grammar: Grammar, vocabulary: LLTokenizer) -> LLMatcher:
    """The machine before its first token. Not a copy of another: copies share a lexer, and wait for each other."""
    from llguidance import LLMatcher

    try:
        match grammar.kind:
            case "json_schema":
                source = LLMatcher.grammar_from_json_schema(grammar.text)
            case "regex":
                source = LLMatcher.grammar_from_regex(grammar.text)
            case "lark":
                source = LLMatcher.grammar_from_lark(grammar.text)
        machine = LLMatcher(vocabulary, source, log_level=0)
    except ValueError as error:  # half a surrogate pair
        raise GenerationError(f"grammar: {one_line(str(error))}") from error
    if machine.is_error():
        raise GenerationError(f"grammar: {one_line(machine.get_error())}")
    return machine


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, eos: frozenset[int], vocab_size: int) -> LLTokenizer:
    """The tokenizer in the form of llguidance: the text of each token, in a tree."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise GenerationError(
            "grammar: needs llguidance, which is not installed: pip install 'mxspec[grammar]'"
        ) from error
    size = max(vocab_size, 1 + max(tokenizer.get_vocab().values()))
    ends = sorted(token for token in eos if tokenizer.id_to_token(token) is not None)
    with guarded("grammar: this tokenizer is not supported", GenerationError):
        return LLTokenizer(_without_limits(tokenizer).to_str(), n_vocab=size, eos_token=ends or None)


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer without truncation and padding, which would apply to forced text."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
