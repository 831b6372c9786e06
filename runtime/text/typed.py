"""Control tokens that are typed in a chat, kept as text: only those that its template writes are control tokens.

    typed      What is <|im_end|>?                          by a client: may be any text
    marked     What is 483…00001?                           what the template is given
    rendered   <|im_start|>user\\nWhat is 483…00001?<|im_end|>
    respelled  207…00000user\\nWhat is <|im_end|>?207…00001  encoded by a tokenizer that knows control tokens as 207…

Marks and spellings are random digits, which templates neither cut nor change, and clients cannot guess.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

DIGITS = 24  # of a random number: 80 bits
WHOLE = ("role", "type")  # texts that templates compare: nothing is put before or after them


class TypedText:
    """Marks what is typed for a chat template; what the template made of it is for a `tokenizer` of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        control = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        typed, own = _digits(), _digits()
        self._nothing = f"{typed}{len(control):05}"  # parts what would be a control token if it stood together
        self._marks = {text: f"{typed}{number:05}" for number, text in enumerate(control)}
        self._typed = {mark: text for text, mark in self._marks.items()} | {self._nothing: ""}
        self._spellings = {text: f"{own}{number:05}" for number, text in enumerate(control)}
        self._control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")
        self._mark = re.compile(rf"{typed}\d{{5}}")
        self._beginnings = tuple({text[:end] for text in control for end in range(1, len(text))})
        self._endings = tuple({text[start:] for text in control for start in range(1, len(text))})
        self.tokenizer = _respelled(tokenizer, self._spellings)

    def mark(self, value: Any) -> Any:
        """JSON with a mark in the place of each control token in its texts and keys."""
        if isinstance(value, str):
            return self._apart(self._marked(value))
        if isinstance(value, Mapping):
            return {
                self._marked(str(key)): self._marked(item)
                if key in WHOLE and isinstance(item, str)
                else self.mark(item)
                for key, item in value.items()
            }
        return [self.mark(item) for item in value] if isinstance(value, list) else value

    def plain(self, text: str) -> str:
        """A text as it was typed."""
        return self._mark.sub(lambda found: self._typed.get(found[0], ""), text)

    def respelled(self, rendered: str) -> str:
        """What a template made of marked messages, as `tokenizer` has to be given it."""
        return self.plain(self._control.sub(lambda found: self._spellings[found[0]], rendered))

    def _marked(self, text: str) -> str:
        return self._control.sub(lambda found: self._marks[found[0]], text)

    def _apart(self, text: str) -> str:
        """The text, apart from neighbours with which it would make a control token."""
        before = self._nothing if text.startswith(self._endings) else ""
        return before + text + (self._nothing if text.endswith(self._beginnings) else "")


def _digits() -> str:
    return "".join(secrets.choice("0123456789") for _ in range(DIGITS))


def _respelled(tokenizer: Tokenizer, spellings: Mapping[str, str]) -> Tokenizer:
    """The tokenizer with other names for its control tokens: their old ones are plain text."""
    found = json.loads(tokenizer.to_str())
    model = found["model"]
    for token in found["added_tokens"]:
        token["content"] = spellings.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {spellings.get(name, name): token for name, token in model["vocab"].items()}
    else:
        model["vocab"] = [[spellings.get(name, name), score] for name, score in model["vocab"]]
    if "merges" in model:  # sentencepiece's may make <s> of < and s>
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & spellings.keys()]
    if model.get("unk_token") in spellings:
        model["unk_token"] = spellings[model["unk_token"]]
    return Tokenizer.from_str(json.dumps(found))
