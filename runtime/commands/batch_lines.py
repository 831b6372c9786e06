"""The lines of a batch job: what each asks for.

{"key": "a", "prompt": "Once upon a time", "temperature": 0.8, "seed": 1}
{"key": "b", "messages": [{"role": "user", "content": "hello"}], "max_new_tokens": 20, "regex": "[a-z ]+"}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.errors import GenerationError, MxspecError, did_you_mean
from mxspec.formats.validation import parse_json
from mxspec.runtime.cli.settings import GRAMMARS, Defaults, grammar_of
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.request import Request

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine

KEYS = ("key", "id")  # names of the caller's own key, which is copied to the answer
REQUEST_FIELDS = tuple(field.name for field in dataclasses.fields(Request) if field.name not in ("grammar", "trace"))
KNOWN = (*REQUEST_FIELDS, *GRAMMARS, *KEYS)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, unchanged, with its number, counted from 1."""

    number: int
    data: bytes


def read_lines(path: Path, argument: str = "--prompts") -> Iterator[Line]:
    """The lines that are not blank; raises MxspecError if the file cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise MxspecError(f"{argument} {path}: is not a regular file, and must be one because it is read twice")
        with path.open("rb") as file:
            yield from (Line(i, data) for i, data in enumerate(file, 1) if data.strip())
    except OSError as error:
        raise MxspecError(f"{argument} {path}: cannot be read: {error.strerror}") from None


def key_of(entry: Mapping[str, Any]) -> Any:
    """The caller's own key, or None."""
    return next((entry[name] for name in KEYS if name in entry), None)


def parse_line(line: Line) -> dict[str, Any]:
    """The JSON object of a line; raises GenerationError if it is not one."""
    entry = parse_json(line.data, "the line", MxspecError)
    if not isinstance(entry, dict):
        raise GenerationError("the line", f"got a {type(entry).__name__}, expected an object with a prompt")
    return entry


def request_of(engine: Engine, entry: Mapping[str, Any], defaults: Defaults) -> Request:
    """What a line asks for; its own settings go before the command's. Raises GenerationError."""
    for name in entry:
        if name not in KNOWN:
            raise GenerationError("", f"unknown key {name!r}{did_you_mean(name, KNOWN)}")
    if all(name in entry for name in KEYS):
        raise GenerationError("id", "got id and key, expected one of them")
    own = {name: value for name, value in entry.items() if name not in KEYS and value is not None}
    _check_kinds(own)
    grammars = {name: own.pop(name) for name in GRAMMARS if name in own}
    if grammars:
        own["grammar"] = grammar_of(grammars)
    if isinstance(own.get("prompt"), str) and "messages" not in own:
        return defaults.request(engine, own.pop("prompt"), **own)
    if defaults.task is not None:
        raise GenerationError("task", "given with a prompt that is not text, so it cannot be put before the prompt")
    return Request(**defaults.for_request(engine, own))


def _check_kinds(own: dict[str, Any]) -> None:
    """Check the types that Request trusts its callers with; in JSON the token ids of logit_bias are text."""
    if not isinstance(own.get("drafter", "model"), str):
        raise GenerationError("drafter", f"got {own['drafter']!r}, expected one of {', '.join(NAMES)}")
    bias = own.get("logit_bias")
    if isinstance(bias, dict):
        for token in bias:
            if not token.isdecimal():
                raise GenerationError("logit_bias", f"got the token id {token!r}, expected a whole number")
        own["logit_bias"] = {int(token): value for token, value in bias.items()}
