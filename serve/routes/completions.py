"""POST /v1/completions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mxspec.formats.errors import MxspecError
from mxspec.runtime.events import Token
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.logprobs import Logprob
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served
from mxspec.serve.engines.scoring import Scores, score
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.http.errors import ApiError, unsupported
from mxspec.serve.http.keys import cache_key
from mxspec.serve.http.limits import check_count, check_prompts
from mxspec.serve.texts.choice_text import ChoiceText, Piece, finish_reason
from mxspec.serve.texts.fields import TOP_LOGPROBS, GenerationRequest, parse_body, refused
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.shape import Chunks, Object, Shape

DEFAULT_TOKENS = 16  # OpenAI's default

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "suffix": (("",), "is not supported: no model here was made to fill in a middle"),
}


def _prompts(value: Any) -> Any:
    """A text, a list of texts, token ids, or a list of lists of them: always as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if value and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return [value]
        if all(isinstance(one, str) for one in value) or all(isinstance(one, list) for one in value):
            return value
    raise ValueError("expected a text, a list of texts, token ids, or a list of lists of token ids")


class CompletionRequest(GenerationRequest):
    """OpenAI's request, except for `suffix`."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] = DEFAULT_TOKENS
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    @property
    def names(self) -> Mapping[str, str]:
        return {**super().names, "max_new_tokens": "max_tokens"}

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(400, "max_tokens: got 0 without echo, which leaves nothing to answer", param="max_tokens")
        if self.max_tokens == 0 and (self.n > 1 or self.best_of is not None):
            name = "best_of" if self.best_of is not None else "n"
            raise ApiError(400, f"{name}: given with max_tokens 0, where nothing is written", param=name)
        if self.max_tokens == 0 and self.stream:
            raise ApiError(400, "stream: given with max_tokens 0, where nothing is written", param="stream")
        if self.best_of is not None and self.stream:
            raise ApiError(400, "best_of: given with stream, but the best is known only at the end", param="best_of")
        if self.best_of is not None and self.best_of < self.n:
            raise ApiError(400, f"best_of: got {self.best_of}, expected at least n, {self.n}", param="best_of")


LEAST = -9999.0  # the log-probability of an impossible token: JSON has no infinity, and clients add these numbers


def prepare(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body to what begins its texts; raises ApiError."""
    return prepare_completion(service, flight, parse_body(body, CompletionRequest, REFUSALS), owner, Chunks())


def prepare_completion(
    service: Service, flight: Flight, asked: CompletionRequest, owner: str, shape: Shape
) -> Prepared[Generation]:
    """What begins the texts, which are sent in this shape; raises ApiError."""
    asked.check()
    served = service.find(asked.model)
    if asked.echo and served.engine.target.encoder is not None:
        raise unsupported(
            "echo", f"is not supported by model {served.id}: an encoder reads the prompt, and no text continues it"
        )
    check_prompts(asked.prompt, service.limits.prompts)
    check_count("n", asked.n, service.limits.n)
    samples = asked.n if asked.best_of is None else asked.best_of
    check_count("best_of", samples, service.limits.n)
    service.admit(flight, served, len(asked.prompt) * samples)
    greedy = asked.is_greedy(served.engine)
    copies = asked.n if greedy and asked.best_of is None and asked.mxspec.beams in (None, 1) else 1
    try:
        grammar = asked.mxspec.grammar()
    except MxspecError as error:
        raise refused(error, asked.names) from None

    def begin() -> Generation:
        prompts = [_prompt(served, given) for given in asked.prompt]
        tokens = None if asked.max_tokens else sum(len(prompt.ids) for prompt in prompts)
        requests = _requests(asked, prompts, grammar, owner, greedy=greedy) if asked.max_tokens else []
        handles = served.engine.submit_all([request for request in requests for _ in range(copies)])
        each = samples // copies
        return Generation(
            served, asked, Completion(served, asked, prompts, samples), handles, each, tokens, copies, shape
        )

    return Prepared(served, grammar, asked.names, begin)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, and its text if it was given as text."""

    ids: list[int]
    text: str | None = None


def _prompt(served: Served, given: str | list[int]) -> Prompt:
    if isinstance(given, str):
        return Prompt(served.engine.encode_within(given), given)
    return Prompt(served.engine.check(given))


def _requests(
    asked: CompletionRequest, prompts: Sequence[Prompt], grammar: Grammar | None, owner: str, *, greedy: bool
) -> list[Request]:
    settings = {
        **asked.settings(cache_key(owner, asked.mxspec.cache_key), greedy=greedy),
        "grammar": grammar,
        "max_new_tokens": asked.max_tokens,
        "logprobs": asked.logprobs,
        "best_of": asked.best_of,
    }
    return [Request(prompt=prompt.ids, **settings) for prompt in prompts]


@dataclass(slots=True)
class Completion:
    """The dialect of completions: continuations, after the prompt where `echo` asks for it."""

    served: Served
    asked: CompletionRequest
    prompts: Sequence[Prompt]
    samples: int
    scores: list[Scores] = field(default_factory=list)  # scores of the prompts, if asked for
    prefix: str = "cmpl"
    whole_object: str = "text_completion"
    chunk_object: str = "text_completion"
    _lengths: dict[int, int] = field(default_factory=dict)  # length of the text so far, by choice

    @property
    def logprobs(self) -> bool:
        return self.asked.logprobs is not None

    async def begin(self, flight: Flight) -> None:
        """Score the prompts where that is asked for."""
        if self.asked.echo and self.asked.logprobs is not None:
            ids = [prompt.ids for prompt in self.prompts]
            self.scores = await score(flight, self.served, ids, self.asked.logprobs)

    def openings(self, index: int) -> list[Object]:
        return [self._echo(index)] if self.asked.echo else []

    def pieces(self, index: int, piece: Piece) -> list[Object]:
        logprobs = self._logprobs([token.logprob for token in piece.tokens], self._lengths.get(index, 0))
        self._lengths[index] = self._lengths.get(index, 0) + len(piece.text)
        reason = None if piece.finished is None else finish_reason(piece.finished.reason)
        return [_choice(index, piece.text, logprobs if piece.tokens else None, reason)]

    def choice(self, index: int, text: ChoiceText) -> Object:
        assert text.finished is not None
        echo = self._echo(text.index) if self.asked.echo else _choice(index, "", None, None)
        logprobs = self._logprobs(logprobs_of(text.tokens), len(echo["text"]))
        if logprobs is not None and echo["logprobs"] is not None:
            logprobs = {name: echo["logprobs"][name] + logprobs[name] for name in logprobs}
        return _choice(index, echo["text"] + text.text, logprobs, finish_reason(text.finished.reason))

    def echoes(self) -> list[Object]:
        """Choices of an answer that consists of the prompts alone."""
        return [{**self._echo(index), "finish_reason": "length"} for index in range(len(self.prompts))]

    def _echo(self, index: int) -> Object:
        number = index // self.samples
        prompt = self.prompts[number]
        text = prompt.text if prompt.text is not None else "".join(map(self.served.texts.text, prompt.ids))
        self._lengths[index] = len(text)
        logprobs = self._prompt_logprobs(prompt, self.scores[number]) if self.scores else None
        return _choice(index, text, logprobs, None)

    def _prompt_logprobs(self, prompt: Prompt, scored: Scores) -> Object:
        rest = self._logprobs(scored[1:], len(self.served.texts.text(prompt.ids[0])))
        assert rest is not None, "scored where log-probabilities are wanted"
        first = {"tokens": [self.served.texts.name(prompt.ids[0])], "token_logprobs": [None], "top_logprobs": [None]}
        return {name: first.get(name, [0]) + rest[name] for name in rest}

    def _logprobs(self, entries: Sequence[Logprob | None], offset: int) -> Object | None:
        """Parallel lists in OpenAI's form; None if log-probabilities are not asked for."""
        if self.asked.logprobs is None:
            return None
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            assert entry is not None, "asked for with the request"
            lists["tokens"].append(self.served.texts.name(entry.token))
            lists["token_logprobs"].append(finite(entry.logprob))
            lists["top_logprobs"].append(self._top(entry) if self.asked.logprobs else None)
            lists["text_offset"].append(offset)
            offset += len(self.served.texts.text(entry.token))
        return lists

    def _top(self, entry: Logprob) -> dict[str, float]:
        """The likeliest tokens, and the token itself, by name; of two with one name, the likelier."""
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            top.setdefault(self.served.texts.name(token), finite(logprob))
        return top


def logprobs_of(tokens: Sequence[Token]) -> list[Logprob | None]:
    """The log-probabilities of some tokens."""
    return [token.logprob for token in tokens]


def finite(logprob: float) -> float:
    """A log-probability as JSON can hold it, without infinity."""
    return logprob if math.isfinite(logprob) else LEAST


def _choice(index: int, text: str, logprobs: Object | None, reason: str | None) -> Object:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
