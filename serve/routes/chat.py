"""POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.formats.validation import Strict
from mxspec.runtime.events import Token
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.logprobs import Logprob
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.engines.token_texts import TokenTexts
from mxspec.serve.http.errors import unsupported, wrong
from mxspec.serve.http.keys import cache_key
from mxspec.serve.http.limits import check_count
from mxspec.serve.routes.messages import Message
from mxspec.serve.texts.choice_text import STOP, ChoiceText, Piece, finite
from mxspec.serve.texts.fields import TOP_LOGPROBS, GenerationRequest, parse_body, refused
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.shape import Chunks, Object, Shape
from mxspec.serve.texts.tools import CallReader, CallStyle, call_grammar, call_style, with_tools

_NO_HEARING = "is not supported: the models here read and write text alone"

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((False,), "is not supported: nothing is kept after the answer"),
    "modalities": ((["text"],), _NO_HEARING),
    "audio": ((), _NO_HEARING),
    "prediction": ((), "is not supported; mxspec.drafter: suffix guesses by the prompt"),
    "moderation": ((), "is not supported"),
    "web_search_options": ((), "is not supported: nothing is looked up"),
    "service_tier": (("auto", "default"), "is not supported: there is one"),
    "reasoning_effort": (("none",), "is not supported"),
    "verbosity": (("medium",), "is not supported"),
    "functions": (([],), "is not supported; give them as tools"),
    "function_call": (("auto", "none"), "is not supported; give tool_choice"),
    "prompt_cache_options": ((), "is not supported; what prompts share is reused by itself"),
    "prompt_cache_retention": (("in_memory",), "is not supported: slots are kept in memory until they are needed"),
}


_TEMPLATE = {"template_variables": "chat_template_kwargs", "continued": "continue_final_message"}


class Function(Strict):
    """The function of a tool, with the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class Schema(Strict):
    """A JSON schema by name; answers always keep to it, also with `strict` false."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema", default_factory=dict)]
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the answer: text, JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class NamedFunction(Strict):
    """The function that is to be called."""

    name: str


class NamedTool(Strict):
    """OpenAI's `tool_choice` of one function."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerationRequest):
    """OpenAI's request, except for the fields in REFUSALS."""

    id_prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def names(self) -> Mapping[str, str]:
        limit = "max_tokens" if self.max_tokens is not None else "max_completion_tokens"
        by_format = self.response_format is not None and self.response_format.type != "text"
        grammar = {"grammar": "response_format"} if by_format else {}
        return {**super().names, **grammar, "max_new_tokens": limit, "prompt": "messages", **_TEMPLATE}

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise wrong("max_tokens", "given with max_completion_tokens, its newer name; expected one of them")
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "given without logprobs")
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            raise wrong("tool_choice", "given without tools")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            known = f"expected one of the tools, {', '.join(names)}"
            raise wrong("tool_choice", f"got {self.tool_choice.function.name!r}, {known}")
        if self.add_generation_prompt is not None and self.add_generation_prompt == self.continue_final_message:
            begins = "either after the generation prompt, or with continue_final_message in the last message"
            raise wrong("add_generation_prompt", f"an answer begins {begins}")
        grammars = [name for name in ("regex", "lark") if getattr(self.mxspec, name) is not None]
        wanted = self.response_format
        if wanted is not None and wanted.type != "text" and grammars:
            raise wrong("response_format", f"given with mxspec.{grammars[0]}")
        if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
            why = "is missing" if wanted.json_schema is None else f"given with type {wanted.type}"
            raise wrong("response_format.json_schema", why)

    def grammar(self) -> Grammar | None:
        """The grammar that the answer has to keep to; raises GenerationError."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return self.mxspec.grammar()
        if wanted.json_schema is None:
            return Grammar.json_schema({"type": "object"})
        return Grammar.json_schema(wanted.json_schema.schema_)

    def chat(self) -> list[dict[str, Any]]:
        """The messages in the form that templates expect; raises GenerationError."""
        chat = []
        for number, message in enumerate(self.messages):
            plain = message.model_dump(exclude_none=True)
            if plain["role"] == "developer":
                plain["role"] = "system"
            for call in plain.get("tool_calls", ()):
                call["function"]["arguments"] = _arguments(number, call["function"]["arguments"])
            plain.setdefault("content", "")  # templates do not expect a reply without
            chat.append(plain)
        return chat


def _arguments(number: int, text: str) -> dict[str, Any]:
    """The arguments of a call as the object that templates expect; raises GenerationError."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GenerationError("messages", f"number {number} has tool_calls whose arguments are not a JSON object")
    return found


def prepare(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body to what begins the answers; raises ApiError."""
    return prepare_chat(service, flight, parse_body(body, ChatRequest, REFUSALS), owner, Chunks())


def prepare_chat(
    service: Service, flight: Flight, asked: ChatRequest, owner: str, shape: Shape
) -> Prepared[Generation]:
    """What begins the answers to a chat, which are sent in this shape; raises ApiError."""
    asked.check()
    served = service.find(asked.model)
    check_count("n", asked.n, service.limits.n)
    if not served.chat:
        raise wrong("messages", f"model {served.id} has no chat template; /v1/completions continues a prompt")
    style = _style(asked, served)
    greedy = asked.is_greedy(served.engine)
    try:
        request = _request(asked, served, style, cache_key(owner, asked.mxspec.cache_key), greedy=greedy)
        request = replace(request, typed_control_tokens=service.typed_control_tokens)
    except MxspecError as error:
        raise refused(error, asked.names) from None
    service.admit(flight, served, asked.n)

    def begin() -> Generation:
        handles = served.engine.submit_all([request] * (asked.n // request.n))  # several of a greedy text
        texts = [
            ChatText(
                index=index, first_of_prompt=index == 0, asked=asked, names=served.texts, calls=_reader(asked, style)
            )
            for index in range(asked.n)
        ]
        return Generation(served, asked, shape, texts, handles, request.n)

    return Prepared(served, request.grammar, asked.names, begin)


def _style(asked: ChatRequest, served: Served) -> CallStyle | None:
    """How calls are written, where there are tools that may be called; raises ApiError for tools with a form."""
    if not asked.tools or asked.tool_choice == "none":
        return None
    if asked.response_format is not None and asked.response_format.type != "text":
        raise unsupported("response_format", "is not supported with tools: it would rule out calls")
    assert served.engine.template is not None
    return call_style(served.engine.template)


def _request(asked: ChatRequest, served: Served, style: CallStyle | None, cache_key: str, *, greedy: bool) -> Request:
    chat: Sequence[Mapping[str, Any]] = asked.chat()
    tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()] if style is not None else None
    if style == "generic" and tools is not None:
        chat, tools = with_tools(chat, tools), None
    return Request(
        messages=chat,
        tools=tools,
        template_variables=asked.chat_template_kwargs or None,
        continued=asked.continue_final_message,
        **asked.settings(cache_key, greedy=greedy),
        grammar=asked.grammar() if style is None else _call_grammar(asked, style, served.engine.tokenizer),
        max_new_tokens=asked.max_tokens or asked.max_completion_tokens or served.engine.target.capacity,
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
    )


def _call_grammar(asked: ChatRequest, style: CallStyle, tokenizer: Tokenizer) -> Grammar | None:
    """The grammar of an answer that has to call a tool, or that may call a strict one."""
    functions = [tool.function.model_dump(exclude_none=True) for tool in asked.tools or ()]
    several = asked.parallel_tool_calls
    if isinstance(asked.tool_choice, NamedTool):
        name = asked.tool_choice.function.name
        named = [function for function in functions if function["name"] == name]
        return call_grammar(style, named, tokenizer, forced=True, several=False)
    if asked.tool_choice == "required" or any(function.get("strict") for function in functions):
        return call_grammar(style, functions, tokenizer, forced=asked.tool_choice == "required", several=several)
    return asked.grammar()


def _reader(asked: ChatRequest, style: CallStyle | None) -> CallReader | None:
    if style is None:
        return None
    names = {tool.function.name for tool in asked.tools or ()}
    return CallReader(style, names, several=asked.parallel_tool_calls)


@dataclass(slots=True, kw_only=True)
class ChatText(ChoiceText):
    """A message of the assistant, with the calls of tools in it."""

    asked: ChatRequest
    names: TokenTexts
    calls: CallReader | None  # None where no tool may be called

    def opening(self) -> Object:
        return self._chunk({"role": "assistant", "content": ""}, None, None)

    def chunk(self, piece: Piece) -> Object:
        text, calls = self._read(piece.text)
        delta: Object = {"content": text} if text else {}
        if calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        logprobs = self._logprobs(piece.tokens) if piece.tokens else None
        return self._chunk(delta, logprobs, self._reason(calls))

    def whole(self, index: int) -> Object:
        text, calls = self._read(self.text)
        message: Object = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        reason, logprobs = self._reason(calls), self._logprobs(self.tokens)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _read(self, text: str) -> tuple[str, list[Object]]:
        """The text outside calls that a piece completes, and at the end the calls."""
        if self.calls is None:
            return text, []
        shown = self.calls.push(text)
        rest, calls = ("", []) if self.finished is None else self.calls.finish()
        return shown + rest, calls

    def _reason(self, calls: Sequence[Object]) -> str | None:
        return "tool_calls" if calls and self.reason == STOP else self.reason

    def _chunk(self, delta: Object, logprobs: Object | None, reason: str | None) -> Object:
        return {"index": self.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[Token]) -> Object | None:
        if not self.asked.logprobs:
            return None
        content = [self._entry(token.logprob) for token in tokens if token.logprob is not None]
        return {"content": content, "refusal": None}

    def _entry(self, entry: Logprob) -> Object:
        top = [self._named(token, logprob) for token, logprob in entry.top]
        return {**self._named(entry.token, entry.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> Object:
        return {"token": self.names.text(token), "logprob": finite(logprob), "bytes": list(self.names.bytes_of(token))}
