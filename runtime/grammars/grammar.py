"""A grammar that the text must keep to, as a request says it: a JSON schema, a regular expression, or Lark."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.matcher import Matcher, one_line
from mxspec.runtime.text.untrusted_tokenizer import guarded

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
            raise GenerationError("grammar", f"got a JSON schema that is not JSON: {one_line(str(error))}") from error
        if not isinstance(value, Mapping):
            raise GenerationError("grammar", f"got {text[:60]} as JSON schema, expected an object such as {{}}")
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
        A stranger's grammar can end the process: Trial (trial.py) tries it first.
        """
        vocabulary = vocabulary_of(tokenizer, eos, vocab_size)
        return Matcher(self.machine(vocabulary), vocabulary, eos, vocab_size)

    def machine(self, vocabulary: LLTokenizer) -> LLMatcher:
        """The machine before its first token; raises GenerationError.

        Texts of several requests each have one. Copies of one share a lexer, and wait for each other.
        """
        from llguidance import LLMatcher

        try:
            match self.kind:
                case "json_schema":
                    source = LLMatcher.grammar_from_json_schema(self.text)
                case "regex":
                    source = LLMatcher.grammar_from_regex(self.text)
                case "lark":
                    source = LLMatcher.grammar_from_lark(self.text)
            machine = LLMatcher(vocabulary, source, log_level=0)
        except UnicodeEncodeError as error:
            raise GenerationError("grammar", "got half a surrogate pair, expected text") from error
        except ValueError as error:
            raise GenerationError("grammar", f"{one_line(str(error))}") from error
        if machine.is_error():
            raise GenerationError("grammar", f"{one_line(machine.get_error())}")
        return machine


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise GenerationError("grammar", f"got {value!r}, expected {what} as a string")
    return value


@dataclass(frozen=True, slots=True)
class VocabularyParts:
    """What llguidance makes a vocabulary of, as another process can be told it."""

    tokenizer: str  # tokenizer.json
    size: int
    ends: list[int]

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos: Collection[int], vocab_size: int) -> VocabularyParts:
        size = max(vocab_size, 1 + max(tokenizer.get_vocab().values()))
        ends = sorted(token for token in eos if tokenizer.id_to_token(token) is not None)
        return cls(_without_limits(tokenizer).to_str(), size, ends)

    def vocabulary(self) -> LLTokenizer:
        """The text of each token, in a tree; GenerationError if llguidance is missing or cannot read the tokenizer."""
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise GenerationError(
                "grammar", "needs llguidance, which is not installed: pip install 'mxspec[grammar]'"
            ) from error
        with guarded("this tokenizer is not supported", partial(GenerationError, "grammar")):
            return LLTokenizer(self.tokenizer, n_vocab=self.size, eos_token=self.ends or None)


def vocabulary_of(tokenizer: Tokenizer, eos: Collection[int], vocab_size: int) -> LLTokenizer:
    """The tokenizer in the form of llguidance; the first time takes up to a second, without a switch of threads."""
    return _vocabulary(tokenizer, frozenset(eos), vocab_size)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer, eos: frozenset[int], vocab_size: int) -> LLTokenizer:
    return VocabularyParts.of(tokenizer, eos, vocab_size).vocabulary()


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of the tokenizer without truncation and padding, which would apply to forced text."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
