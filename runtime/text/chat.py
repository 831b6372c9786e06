"""Chats as text: the bundle's own template, rendered as transformers' apply_chat_template renders it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, GenerationError, UnavailableError
from mxspec.formats.validation import parse_json
from mxspec.runtime.guarded.fork_server import ForkServer, ProcessEndedError, RefusedError
from mxspec.runtime.text.typed import TypedText

TEMPLATE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
SECONDS = 8.0  # of processor time for one template; a chat of 10 million characters takes about one
LARGEST = 16 << 20  # characters of each of the two files
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates where a tokenizer has several

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The templates of a bundle by name, and the texts of the special tokens."""

    sources: Mapping[str, str]
    tool_source: str | None  # the template that describes tools to a model; None if the bundle has no such template
    special_tokens: Mapping[str, str]
    typed: TypedText | None = None  # keeps control tokens in messages as text

    @classmethod
    def of(cls, bundle: Bundle) -> ChatTemplate | None:
        """The bundle's template, None where it has none; raises BundleError for one that cannot be compiled."""
        return cls.read(bundle.path, bundle.manifest.files, f"bundle {bundle.path}")

    @classmethod
    def read(cls, folder: Path, files: Collection[str], where: str) -> ChatTemplate | None:
        """The template in those of a folder's files that are in `files`; errors name the folder as `where`."""
        where_config = f"{where}: {TOKENIZER_CONFIG}"
        known = TOKENIZER_CONFIG in files
        config = _tokenizer_config(_read(folder / TOKENIZER_CONFIG, where_config), where_config) if known else {}
        if TEMPLATE in files:
            sources = {DEFAULT: _read(folder / TEMPLATE, f"{where}: {TEMPLATE}")}
        else:
            sources = _sources(config, where_config)
        if not sources:
            return None
        if DEFAULT not in sources:
            raise BundleError(f"{where}: got chat templates {', '.join(sources)}, expected one named {DEFAULT!r}")
        try:
            variables = {name: _ask(sources, name).splitlines() for name in sources}
        except RefusedError as problem:
            raise BundleError(f"{where}: the chat template is invalid: {problem}") from None
        for_tools = TOOL_USE if TOOL_USE in sources else DEFAULT
        return cls(sources, sources[for_tools] if "tools" in variables[for_tools] else None, _special_tokens(config))

    @classmethod
    def required(cls, bundle: Bundle) -> ChatTemplate:
        """The bundle's template; raises GenerationError where it has none."""
        template = cls.of(bundle)
        if template is None:
            raise GenerationError(
                "messages",
                f"bundle {bundle.path} has no chat template; give a prompt instead of messages (specrun --raw)",
            )
        return template

    @property
    def source(self) -> str:
        """The text of the template of chats without tools."""
        return self.sources[DEFAULT]

    def keeping_typed(self, tokenizer: Tokenizer) -> ChatTemplate:
        """The same template, for which control tokens in messages are text."""
        return replace(self, typed=TypedText(tokenizer))

    def spelled(self, tokenizer: Tokenizer, text: str) -> tuple[Tokenizer, str]:
        """The tokenizer of a rendered chat, or of a part of it, and the text as it has to be given to it."""
        return (tokenizer, text) if self.typed is None else (self.typed.tokenizer, self.typed.respelled(text))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
        variables: Mapping[str, Any] | None = None,
        continued: bool = False,
    ) -> str:
        """The text of a chat, its special tokens written out, up to where the answer begins.

        `variables` are further ones of the template, such as enable_thinking; if `continued`, the text ends with the
        last message, which the answer goes on from. `now` is the time that the template sees. Raises GenerationError
        for invalid messages, and for those that the template refuses or cannot render.
        """
        name = TOOL_USE if tools and TOOL_USE in self.sources else DEFAULT
        checked = self._marked(check_messages(messages))
        own = {
            **self.special_tokens,
            "messages": checked,
            "tools": None if tools is None else self._marked(_plain(tools, "tools")),
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continued,
        }
        given = _plain(variables or {}, "template_variables")
        for known in own.keys() & given.keys():
            raise GenerationError("template_variables", f"{known} is set by the request or the bundle; leave it out")
        try:
            text = _ask(self.sources, name, {**self._marked(given), **own}, None if now is None else now.isoformat())
        except RefusedError as problem:
            why = str(problem) if self.typed is None else self.typed.plain(str(problem))
            raise GenerationError("messages", f"the chat template fails: {why}") from None
        return _up_to_last(checked, text) if continued else text

    def _marked(self, typed: Any) -> Any:
        return typed if self.typed is None else self.typed.mark(typed)


def _ask(sources: Mapping[str, str], name: str, *request: Any) -> str:
    """What template_sandbox.py answers; raises UnavailableError if its process was ended from outside."""
    try:
        return _renderer(*sources.values()).ask(SECONDS, list(sources).index(name), *request)
    except ProcessEndedError as error:
        raise UnavailableError("messages", str(error)) from None


@lru_cache(maxsize=8)
def _renderer(*sources: str) -> ForkServer:
    """Templates are rendered by processes with limits: one call of Python's own functions can take any time."""
    return ForkServer("mxspec.runtime.text.template_sandbox", *sources, start_seconds=SECONDS)


def characters(value: object) -> int:
    """The number of characters of all texts in a value of JSON, keys left out."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, Sequence) else 0


def _up_to_last(messages: Sequence[Message], text: str) -> str:
    """A rendered chat up to the end of what its last message says; raises GenerationError if the chat shows it not."""
    said = messages[-1].get("content")
    if messages[-1]["role"] != "assistant" or not isinstance(said, str) or not said.strip():
        raise GenerationError("messages", "to be continued, the last one must be an assistant's message with text")
    for ending in (said, said.strip()):
        at = text.rfind(ending)
        if at >= 0:
            return text[: at + len(ending)]
    raise GenerationError("messages", "the last one is to be continued, but the chat template leaves it out")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """Messages as plain values, without the keys whose value is None; raises GenerationError for invalid ones."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise GenerationError(
            "messages", "expected a list of at least one message such as {role: user, content: hello}"
        )
    checked = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise GenerationError("messages", f"number {i} is a {type(message).__name__}, expected role and content")
        plain = {key: value for key, value in _plain(message, "messages", f"number {i} ").items() if value is not None}
        if not isinstance(plain.get("role"), str):
            raise GenerationError("messages", f"number {i} has role {plain.get('role')!r}, expected a string")
        if not isinstance(plain.get("content", ""), str | list):
            raise GenerationError("messages", f"number {i} has content {plain['content']!r}, expected a string")
        checked.append(plain)
    return checked


def _plain(value: Any, field: str, where: str = "") -> Any:
    """A copy made of JSON's types alone: objects have methods that no sandbox controls."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, field, where): _plain(item, field, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, field, where) for item in value]
    raise GenerationError(field, f"{where}holds a {type(value).__name__}, expected a JSON value")


def _sources(config: Mapping[str, Any], where: str) -> dict[str, str]:
    """The templates of tokenizer_config.json by name; a template in a file of its own comes before them."""
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
    if isinstance(found, str):
        found = {DEFAULT: found}
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for item in found.items() for text in item):
        raise BundleError(f"{where}: chat_template is neither text nor named texts")
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens; tokenizer_config.json has each as text or as an object with its `content`."""
    entries = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: entry.get("content") if isinstance(entry, dict) else entry for name, entry in entries.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _tokenizer_config(text: str, where: str) -> dict[str, Any]:
    found = parse_json(text, where, BundleError)
    if not isinstance(found, dict):
        raise BundleError(f"{where}: not a JSON object")
    return found


def _read(path: Path, where: str) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
    except (OSError, UnicodeDecodeError) as problem:
        raise BundleError(f"{where}: {' '.join(str(problem).split())}") from None
    if len(text) > LARGEST:
        raise BundleError(f"{where}: got more than {LARGEST} characters, the limit")
    return text
