"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mxspec.formats.errors import MxspecError
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.logprobs import Logprob, raw_logprob
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.engines.token_texts import TokenTexts
from mxspec.serve.http.errors import unsupported, wrong
from mxspec.serve.http.keys import cache_key
from mxspec.serve.http.limits import check_count
from mxspec.serve.texts.choice_text import LENGTH, ChoiceText, Piece, finite
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

    id_prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

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
            raise wrong("max_tokens", "got 0 without echo, which leaves nothing to answer")
        if self.max_tokens == 0 and (self.n > 1 or self.best_of is not None):
            name = "best_of" if self.best_of is not None else "n"
            raise wrong(name, "given with max_tokens 0, where nothing is written")
        if self.max_tokens == 0 and self.stream:
            raise wrong("stream", "given with max_tokens 0, where nothing is written")
        if self.best_of is not None and self.stream:
            raise wrong("best_of", "given with stream, but the best is known only at the end")
        if self.best_of is not None and self.best_of < self.n:
            raise wrong("best_of", f"got {self.best_of}, expected at least n, {self.n}")


Scores = list[Logprob | None]  # of each token of a prompt after those before it; None for the first token


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
    if not asked.prompt:
        raise wrong("prompt", "got an empty list, expected at least one prompt")
    if len(asked.prompt) > service.limits.prompts:
        raise wrong("prompt", f"got {len(asked.prompt)} prompts, expected at most {service.limits.prompts}")
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
        requests = _requests(asked, prompts, grammar, owner, greedy=greedy) if asked.max_tokens else []
        handles = served.engine.submit_all([request for request in requests for _ in range(copies)])
        if asked.echo and asked.logprobs is not None:
            for prompt in prompts:
                prompt.scores = served.scorer.submit(_score, flight, served, prompt.ids, asked.logprobs)
        texts = [
            CompletionText(
                index=index, first_of_prompt=not index % samples, asked=asked, names=served.texts, prompt=prompt
            )
            for index, prompt in enumerate(prompt for prompt in prompts for _ in range(samples))
        ]
        tokens = None if asked.max_tokens else sum(len(prompt.ids) for prompt in prompts)
        scoring = [prompt.scores for prompt in prompts if prompt.scores is not None]
        return Generation(served, asked, shape, texts, handles, samples // copies, tokens, scoring)

    return Prepared(served, grammar, asked.names, begin)


@dataclass(slots=True)
class Prompt:
    """The tokens of a prompt, its text if it was given as text, and its scores if they were asked for."""

    ids: list[int]
    text: str | None = None
    scores: Future[Scores] | None = None


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


def _score(flight: Flight, served: Served, prompt: Sequence[int], best: int) -> Scores:
    """Log-probabilities of a prompt's tokens, with the `best` likeliest beside each; stops once the flight is aborted.

    They have a session of their own, so no running text waits for them.
    """
    logprobs: Scores = [None]
    for rows in served.engine.score(prompt, model=served.model.kind):
        if flight.abort_reason is not None:
            break
        following = prompt[len(logprobs) : len(logprobs) + len(rows)]
        logprobs += [raw_logprob(row, token, best) for row, token in zip(rows, following, strict=False)]
    return logprobs


@dataclass(slots=True, kw_only=True)
class CompletionText(ChoiceText):
    """A continuation, after the prompt where `echo` asks for it."""

    asked: CompletionRequest
    names: TokenTexts
    prompt: Prompt
    _length: int = 0  # length of the text so far

    def opening(self) -> Object | None:
        return self._echo() if self.asked.echo else None

    def chunk(self, piece: Piece) -> Object:
        logprobs = self._logprobs([token.logprob for token in piece.tokens], self._length) if piece.tokens else None
        self._length += len(piece.text)
        return _choice(self.index, piece.text, logprobs, self.reason)

    def whole(self, index: int) -> Object:
        echo = self._echo() if self.asked.echo else _choice(index, "", None, None)
        logprobs = self._logprobs([token.logprob for token in self.tokens], len(echo["text"]))
        if logprobs is not None and echo["logprobs"] is not None:
            logprobs = {name: echo["logprobs"][name] + logprobs[name] for name in logprobs}
        return _choice(index, echo["text"] + self.text, logprobs, self.reason or LENGTH)  # or: nothing was written

    def _echo(self) -> Object:
        prompt = self.prompt
        text = prompt.text if prompt.text is not None else "".join(map(self.names.text, prompt.ids))
        self._length = len(text)
        logprobs = None if prompt.scores is None else self._prompt_logprobs(prompt.ids[0], prompt.scores.result())
        return _choice(self.index, text, logprobs, None)

    def _prompt_logprobs(self, begin: int, scores: Scores) -> Object:
        rest = self._logprobs(scores[1:], len(self.names.text(begin)))
        assert rest is not None, "scored where log-probabilities are wanted"
        first = {"tokens": [self.names.name(begin)], "token_logprobs": [None], "top_logprobs": [None]}
        return {name: first.get(name, [0]) + rest[name] for name in rest}

    def _logprobs(self, entries: Sequence[Logprob | None], offset: int) -> Object | None:
        """Parallel lists in OpenAI's form; None if log-probabilities are not asked for."""
        if self.asked.logprobs is None:
            return None
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            assert entry is not None, "asked for with the request"
            lists["tokens"].append(self.names.name(entry.token))
            lists["token_logprobs"].append(finite(entry.logprob))
            lists["top_logprobs"].append(self._top(entry) if self.asked.logprobs else None)
            lists["text_offset"].append(offset)
            offset += len(self.names.text(entry.token))
        return lists

    def _top(self, entry: Logprob) -> dict[str, float]:
        """The likeliest tokens, and the token itself, by name; of two with one name, the likelier."""
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            top.setdefault(self.names.name(token), finite(logprob))
        return top


def _choice(index: int, text: str, logprobs: Object | None, reason: str | None) -> Object:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
