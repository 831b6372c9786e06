"""/tokenize, /detokenize and /tokenizer_info, as vLLM and lm-eval's remote tokenizer have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, model_validator
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from mxspec.formats.errors import MxspecError
from mxspec.formats.validation import Strict
from mxspec.runtime.text.tokenizer import check_ids
from mxspec.serve.engines.service import Service
from mxspec.serve.http.body import read_body
from mxspec.serve.routes.chat import ChatRequest
from mxspec.serve.routes.messages import Message
from mxspec.serve.texts.fields import parse_body, refused


class TokenizeRequest(Strict):
    """The request for the tokens of a text, or of the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for a text, false for a chat, whose template writes them
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Any:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either a prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """The request for the text of token ids."""

    model: str | None = None
    tokens: list[int]


Answer = Callable[[Service, bytes], dict[str, Any]]


class TokenRoute:
    """An endpoint that answers at once, on a thread."""

    def __init__(self, service: Service, answer: Answer) -> None:
        self._service = service
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.flight():
            body = await read_body(scope, receive, self._service.limits)
            answer = await self._service.prepare(lambda: self._answer(self._service, body))
            await JSONResponse(answer)(scope, receive, send)


def tokenize(service: Service, body: bytes) -> dict[str, Any]:
    """Token ids of a text or of a chat."""
    asked = parse_body(body, TokenizeRequest, {})
    engine = service.find(asked.model).engine
    template = None
    try:
        if asked.messages is not None:
            chat = ChatRequest(messages=asked.messages).chat()
            template = engine.template_for(service.typed_control_tokens)
            engine.check_chat(chat)
            text = template.render(chat, add_generation_prompt=asked.add_generation_prompt)
            special = asked.add_special_tokens is True
        else:
            text, special = asked.prompt or "", asked.add_special_tokens is not False
        tokens = engine.encode_within(text, rendered=not special, template=template)
    except MxspecError as error:
        raise refused(error, {} if asked.messages is None else {"prompt": "messages"}) from None
    names = [engine.tokenizer.id_to_token(token) for token in tokens] if asked.return_token_strs else None
    return {"count": len(tokens), "max_model_len": engine.prompt_capacity, "tokens": tokens, "token_strs": names}


def detokenize(service: Service, body: bytes) -> dict[str, Any]:
    """The text of token ids, special tokens spelled out."""
    asked = parse_body(body, DetokenizeRequest, {})
    engine = service.find(asked.model).engine
    try:
        tokens = check_ids(asked.tokens, engine.bundle.manifest.tokenizer.vocab_size, "tokens")
    except MxspecError as error:
        raise refused(error, {"tokens": "tokens"}) from None
    return {"prompt": engine.tokenizer.decode(tokens, skip_special_tokens=False)}


def tokenizer_info(service: Service, model: str | None) -> dict[str, Any]:
    """The special tokens in the tokenizer's configuration, and the chat template."""
    engine = service.find(model).engine
    entry = engine.bundle.manifest.tokenizer
    spelled = engine.tokenizer.id_to_token
    template = engine.template
    texts = {} if template is None else dict(template.special_tokens)
    return {
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": engine.target.capacity,
        "vocab_size": entry.vocab_size,
        "bos_token": None if entry.bos_token_id is None else spelled(entry.bos_token_id),
        "eos_token": spelled(entry.eos_token_ids[0]) if entry.eos_token_ids else None,
        "pad_token": texts.get("pad_token"),
        "unk_token": texts.get("unk_token"),
        "chat_template": None if template is None else template.source,
    }
