"""Turn a command's options into the settings of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.cli.command import read_text

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.grammars.grammar import Grammar
    from mxspec.runtime.request import Message, Request
    from mxspec.runtime.settings import K

GRAMMARS = ("json_schema", "regex", "lark")


def parse_k(_ctx: click.Context, _param: click.Parameter, value: str | None) -> K | None:
    """Parse --k: a number of tokens, or auto."""
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if not value.isdecimal():
        raise click.BadParameter(f"got {value!r}, expected auto, or a number of tokens (0: plain decoding)")
    return int(value)


def parse_early_stopping(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bool | str | None:
    """Parse --early-stopping: true, false, or never."""
    known: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}
    if value is not None and value not in known:
        raise click.BadParameter(f"got {value!r}, expected true, false or never")
    return None if value is None else known[value]


def parse_bias(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> dict[int, float]:
    """Parse --logit-bias into a dict of token ids and the numbers to add to their logits."""
    bias: dict[int, float] = {}
    for value in values:
        token, _, number = value.partition("=")
        try:
            added = float(number)
        except ValueError:
            added = float("nan")
        if not token.isdecimal() or added != added:
            raise click.BadParameter(f"got {value!r}, expected a token id and a number, as in 42=-1.5 or 42=-inf")
        if int(token) in bias:
            raise click.BadParameter(f"got token id {token} twice")
        bias[int(token)] = added
    return bias


def request_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Request that were given as options; the others are left to the bundle's defaults."""
    given = {name: value for name, value in sorted(options.items()) if value not in (None, (), {})}
    texts = {name: given.pop(name) for name in GRAMMARS if name in given}
    if "lark" in texts:
        texts["lark"] = read_text(Path(texts["lark"]), "--lark")
    if "json_schema" in texts and not texts["json_schema"].lstrip().startswith("{"):
        texts["json_schema"] = read_text(Path(texts["json_schema"]), "--json-schema")
    if texts:
        given["grammar"] = grammar_of(texts)
    return given


def grammar_of(texts: Mapping[str, Any]) -> Grammar:
    """The grammar that the options give; raises GenerationError if there are several, or if it is invalid."""
    from mxspec.runtime.grammars.grammar import Grammar

    if len(texts) > 1:
        raise GenerationError("grammar", f"got {' and '.join(texts)}, expected one of them")
    ((kind, text),) = texts.items()
    makers = {"json_schema": Grammar.json_schema, "regex": Grammar.regex, "lark": Grammar.lark}
    return makers[kind](text)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a command says of all its prompts; equal ones have the same repr."""

    settings: Mapping[str, Any]  # of the request
    system: str | None = None
    raw: bool = False
    task: str | None = None

    def for_request(self, engine: Engine, own: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a request with some of its `own`; a text may take all that the context holds."""
        return {"max_new_tokens": engine.target.capacity, **self.settings, **own}

    def request(self, engine: Engine, prompt: str, **own: Any) -> Request:
        """The request for a text: a chat message if the bundle has a template, unless the text is to be continued.

        The prefix of the task comes before the text. Raises GenerationError.
        """
        from mxspec.runtime.request import Request

        settings = self.for_request(engine, own)
        if self.task is not None:
            prompt = engine.task(self.task) + prompt
        if self.raw or (engine.template is None and self.system is None):
            return Request(prompt=prompt, **settings)
        if engine.template is None:
            where = f"bundle {engine.bundle.path}"
            raise GenerationError("system", f"{where} has no chat template to put it in; leave it out")
        instructions: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return Request(messages=[*instructions, {"role": "user", "content": prompt}], **settings)
