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
        vocabulary = vocabulary_of(tokenizer, frozenset(eos), vocab_size)
        return Matcher(self.machine(vocabulary), vocabulary, eos, vocab_size)

    def machine(self, vocabulary: LLTokenizer) -> LLMatcher:
        """The machine before its first token; raises GenerationError.

        Texts of several requests each have one. Copies of one share a lexer, and wait for each other.
        """
        from llguidance import LLMatcher

        try:
            source = getattr(LLMatcher, f"grammar_from_{self.kind}")(self.text)
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


def vocabulary_parts(tokenizer: Tokenizer, eos: Collection[int], vocab_size: int) -> tuple[str, int, list[int]]:
    """What make_vocabulary makes a vocabulary of, also in another process: tokenizer.json, size and ends."""
    if tokenizer.truncation is not None or tokenizer.padding is not None:  # which would apply to forced text
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.no_truncation()
        tokenizer.no_padding()
    size = max(vocab_size, 1 + max(tokenizer.get_vocab().values()))
    return tokenizer.to_str(), size, sorted(token for token in eos if tokenizer.id_to_token(token) is not None)


def make_vocabulary(tokenizer_json: str, size: int, ends: list[int]) -> LLTokenizer:
    """The text of each token, in a tree; GenerationError if llguidance is missing or cannot read the tokenizer."""
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise GenerationError(
            "grammar", "needs llguidance, which is not installed: pip install 'mxspec[grammar]'"
        ) from error
    with guarded("this tokenizer is not supported", partial(GenerationError, "grammar")):
        return LLTokenizer(tokenizer_json, n_vocab=size, eos_token=ends or None)


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: Tokenizer, eos: frozenset[int], vocab_size: int) -> LLTokenizer:
    """The tokenizer in the form of llguidance; the first time takes up to a second, without a switch of threads."""
    return make_vocabulary(*vocabulary_parts(tokenizer, eos, vocab_size))
