"""Fields that several routes share, and the parsing of a body, whose errors name the field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from mxspec.formats.errors import ContextLengthError, GenerationError, MxspecError, UnavailableError, did_you_mean
from mxspec.formats.sampling import DRAWN, PARAMETERS
from mxspec.formats.validation import Strict, in_plain_words, parse_json, shorten_json, with_fields
from mxspec.runtime.cli.settings import grammar_of
from mxspec.runtime.engine import Engine
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import EarlyStopping
from mxspec.runtime.settings import SETTINGS
from mxspec.serve.http.errors import SERVER, ApiError, unsupported, wrong

DEEPEST = 100  # most levels of nested objects and lists
TOP_LOGPROBS = 20  # the limit of OpenAI's chats

Model = TypeVar("Model", bound=Strict)


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _check_k(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError("expected a number of tokens, or auto")


def _check_bias(value: Any) -> Any:
    """Check a logit_bias, whose token ids are text because they are keys in JSON."""
    if not isinstance(value, Mapping):
        raise ValueError("expected token ids with numbers")
    for token in value:
        if not (isinstance(token, str) and token.isdecimal() and token.isascii()):
            raise ValueError(f"expected whole numbers as token ids, not {token!r}")
    return {int(token): bias for token, bias in value.items()}


Stops = Annotated[list[str], BeforeValidator(_one_or_many), Field(max_length=16)]
K = Annotated[Any, BeforeValidator(_check_k)]
Bias = Annotated[dict[int, float], BeforeValidator(_check_bias)]


# Settings that other servers have at the top of a request (vLLM, llama.cpp), by our name; each also has its own in Own.
OF_OTHERS = {parameter.vllm: name for name, parameter in PARAMETERS.items() if parameter.vllm} | {
    setting.vllm: name for name, setting in SETTINGS.items() if setting.vllm
}
OFF = {"top_k": (-1, 0), "typical_p": (0,), "seed": (-1,)}  # what other servers have for "not given"
OF_OPENAI = tuple(name for name, parameter in PARAMETERS.items() if parameter.openai)


_KINDS: Mapping[str, Any] = {
    "number": float | None,
    "integer": int | None,
    "bias": Bias | None,
    "flag": bool | None,
    "choice": str | None,
    "k": K,
    "early_stopping": EarlyStopping | None,
    "token_ids": list[int] | None,
}


def _fields_of(names: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    """Fields for settings by our name, under their names in a request; None where they are not given."""
    kinds: dict[str, str] = {name: parameter.kind for name, parameter in PARAMETERS.items()}
    kinds.update((name, setting.kind) for name, setting in SETTINGS.items())
    return {theirs: (_KINDS[kinds[ours]], None) for theirs, ours in names.items()}


_OWN = {name: name for name in PARAMETERS if name not in OF_OPENAI}
_OWN |= {name: name for name, setting in SETTINGS.items() if setting.served}


class Own(with_fields(_fields_of(_OWN))):  # type: ignore[misc]
    """The object `mxspec` of a request: the settings of the runtime's Request that OpenAI's API lacks."""

    cache_key: str = ""
    regex: str | None = None
    lark: str | None = None
    origins: bool = False
    trace: bool = False

    def settings(self) -> dict[str, Any]:
        """The fields of Request that are given."""
        left_out = {"cache_key", "regex", "lark", "origins", "trace"}
        given: dict[str, Any] = self.model_dump(exclude_unset=True, exclude=left_out)
        return given

    def grammar(self) -> Grammar | None:
        """The grammar that is given; raises GenerationError if two are given."""
        texts = {name: text for name, text in (("regex", self.regex), ("lark", self.lark)) if text is not None}
        return grammar_of(texts) if texts else None


class Lenient(Strict):
    """What clients fill in as they read it from others: unknown keys are left out, known ones are checked."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(Strict):
    """OpenAI's `stream_options`; nothing is obfuscated here."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class GenerationRequest(with_fields(_fields_of({name: name for name in OF_OPENAI} | OF_OTHERS))):  # type: ignore[misc]
    """The fields that requests for a chat and for a completion share."""

    id_prefix: ClassVar[str]  # of an answer's id
    whole_object: ClassVar[str]  # what an answer says that it is
    chunk_object: ClassVar[str]
    model: str | None = None
    n: Annotated[int, Field(ge=1)] = 1
    stop: Stops = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    mxspec: Own = Own()
    _ignored: list[str] = PrivateAttr(default_factory=list)

    @property
    def ignored(self) -> list[str]:
        """The fields that were given and change nothing."""
        known = {"user", "metadata", "safety_identifier", "prompt_cache_key"} & self.model_fields_set
        return sorted({*self._ignored, *known})

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def names(self) -> Mapping[str, str]:
        """The names that this request has for settings of the runtime."""
        grammar = {"grammar": "mxspec.lark" if self.mxspec.regex is None else "mxspec.regex"}
        tops = {ours: theirs for theirs, ours in OF_OTHERS.items() if getattr(self, theirs) is not None}
        return {**tops, **grammar}

    def is_greedy(self, engine: Engine) -> bool:
        """Whether the likeliest tokens are asked for, also by the bundle's default."""
        default = engine.bundle.manifest.sampling.temperature
        return bool((default if self.temperature is None else self.temperature) == 0)

    def settings(self, cache_key: str, *, greedy: bool) -> dict[str, Any]:
        """The fields of Request that all routes fill alike; what shapes a draw is left out of `greedy` ones."""
        given = {name: value for name in OF_OPENAI if (value := getattr(self, name)) is not None}
        given |= {ours: value for theirs, ours in OF_OTHERS.items() if (value := getattr(self, theirs)) is not None}
        given = {name: value for name, value in given.items() if value not in OFF.get(name, ())}
        if greedy:
            given = {name: value for name, value in given.items() if name not in DRAWN}
        return {
            **self.mxspec.settings(),
            **given,
            "stop": tuple(self.stop),
            "n": 1 if greedy and self.mxspec.beams in (None, 1) else self.n,
            "trace": self.mxspec.trace,
            "cache_key": cache_key,
        }

    def check(self) -> None:
        """Raise ApiError for fields that have no effect in combination."""
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "given without stream")
        for theirs, ours in OF_OTHERS.items():
            if getattr(self, theirs) is not None and ours in self.mxspec.model_fields_set:
                raise wrong(theirs, f"got mxspec.{ours} too, expected one of them")
        if self.mxspec.trace and not self.stream:
            raise wrong("mxspec.trace", "given without stream")


# The names that requests have for settings of the runtime.
_NAMES = {
    field.name: f"mxspec.{field.name}" if field.name in Own.model_fields else field.name
    for field in dataclasses.fields(Request)
}


def refused(error: MxspecError, names: Mapping[str, str] | None = None) -> ApiError:
    """An error of the engine as the server's; `names`: settings that the request has under another name."""
    if isinstance(error, UnavailableError):
        return ApiError(503, str(error), kind=SERVER, code="unavailable", retry_after=1)
    known = _NAMES | dict(names or {})
    message, param, code = str(error), None, None
    if isinstance(error, GenerationError) and error.field in known:
        param = known[error.field]
        message = f"{param}: {error.problem}"
    if isinstance(error, ContextLengthError):  # clients look for the code, or for these words
        message, code = f"{message}; it is longer than the model's context length", "context_length_exceeded"
    return ApiError(400, message, param=param, code=code)


Refusals = Mapping[str, tuple[tuple[Any, ...], str]]  # by field: values without effect, and why others are refused


def parse_body(body: bytes, model: type[Model], refusals: Refusals) -> Model:
    """The request that a body holds; null counts as not given. Raises ApiError 400."""
    try:
        found = parse_json(body, "body", MxspecError)
    except MxspecError as error:
        raise ApiError(400, str(error)) from None
    if not isinstance(found, dict):
        raise ApiError(400, f"body: got {shorten_json(found)}, expected an object")
    _check_depth(found)
    return parse_object(found, model, refusals)


def parse_object(
    found: Mapping[str, Any], model: type[Model], refusals: Refusals, no_effect: Iterable[str] = ()
) -> Model:
    """The request that an object holds; `no_effect`: further fields that were given. Raises ApiError 400."""
    given = {name: value for name, value in found.items() if value is not None}
    if isinstance(given.get("mxspec"), dict):
        given["mxspec"] = {name: value for name, value in given["mxspec"].items() if value is not None}
    ignored = [*no_effect]
    for name, (harmless, why) in refusals.items():
        if name in given:
            if not any(given[name] is value or given[name] == value for value in harmless):
                raise unsupported(name, why)
            del given[name]
            ignored.append(name)
    try:
        asked = model.model_validate(given)
    except ValidationError as problems:
        raise _first(problems, given, model) from None
    if isinstance(asked, GenerationRequest):
        asked._ignored.extend(ignored)
    return asked


def _check_depth(body: dict[str, Any]) -> None:
    """Raise ApiError for a body that is nested too deep: templates and schemas recurse over it."""
    level: list[Any] = [body]
    for _ in range(DEEPEST):
        values = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise ApiError(400, f"body: nested deeper than {DEEPEST}")


def _first(problems: ValidationError, given: dict[str, Any], model: type[Strict]) -> ApiError:
    """The first mistake; an unknown field comes before others, as it often is a missing one misspelt."""
    found = problems.errors(include_url=False)
    worst = next((problem for problem in found if problem["type"] == "extra_forbidden"), found[0])
    param = _path(worst["loc"], given, worst["type"])
    if not param:
        return ApiError(400, f"body: {in_plain_words(worst['msg'])}")
    if worst["type"] == "union_tag_invalid":
        name = worst["ctx"]["discriminator"].strip("'")
        return _expected(f"{param}.{name}", f"expected {worst['ctx']['expected_tags']}", worst["input"][name])
    last = str(worst["loc"][-1])
    if worst["type"] == "extra_forbidden":
        own = last in Own.model_fields and param == last
        hint = f"; mxspec has it: mxspec.{last}" if own else did_you_mean(last, model.model_fields)
        return ApiError(400, f"{param[:200]}: unknown field{hint}", param=param, code="unknown_parameter")
    if worst["type"] == "missing":
        return wrong(param, "is missing", "missing_required_parameter")
    return _expected(param, in_plain_words(worst["msg"]), worst["input"])


def _expected(param: str, expected: str, got: Any) -> ApiError:
    return wrong(param, f"{expected}, got {shorten_json(got)}")


def _path(location: tuple[int | str, ...], value: Any, kind: str) -> str:
    """Where a mistake is in the request, as `messages.0.content`: without the alternatives that pydantic names."""
    parts = []
    for place, part in enumerate(location):
        inside = isinstance(value, dict) and part in value
        inside |= isinstance(value, list) and isinstance(part, int) and part < len(value)
        if inside:
            value = value[part]
            parts.append(str(part))
        elif kind == "missing" and place == len(location) - 1:
            parts.append(str(part))
    return ".".join(parts)
