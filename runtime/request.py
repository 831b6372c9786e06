"""A request: a prompt, and the settings of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.sampling.settings import Beams
from mxspec.runtime.settings import SETTINGS, RequestSettings
from mxspec.runtime.text.stream import check_stops

Message = Mapping[str, Any]

MAX_LENGTH_PENALTY = 10.0  # so that float32 holds a length to this power


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RequestSettings):
    """One prompt, and how it is to be continued; None stands for the bundle's default.

    The settings (`max_new_tokens`, `k`, ...) are declared in settings.py, the sampling parameters (`temperature`,
    `top_k`, ...) in formats/sampling.py.

    The prompt is text, token ids, or the messages of a chat; it is the source where the bundle's models have encoders,
    and `decoder_prompt`, text or token ids, is what the answer to it goes on from. Temperature 0 is greedy: the text is
    the one that the target alone writes, at every k. Otherwise it follows the target's distribution, shaped by the
    settings in the order of docs/engine.md.
    """

    prompt: str | Sequence[int] | None = None
    decoder_prompt: str | Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Message] | None = None  # that the chat's template describes to the model
    template_variables: Message | None = None  # further ones of the chat's template, such as enable_thinking
    continued: bool = False  # the answer goes on from the last message, which is the assistant's
    grammar: Grammar | None = None
    trace: bool = False  # each Round says what was drafted, what both models thought of it, and what became of it
    cache_key: str = ""  # cached prompts and answers are shared only between requests of the same key

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise GenerationError("prompt", "expected either a prompt or messages")
        if self.tools is not None and self.messages is None:
            raise GenerationError("tools", "given with a prompt; tools need messages, whose template describes them")
        for name, given in (("template_variables", self.template_variables is not None), ("continued", self.continued)):
            if given and self.messages is None:
                raise GenerationError(name, "given with a prompt; it needs messages")
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.low is not None and value is not None:
                require_integer(name, value, setting.low)
            if setting.kind == "flag" and not isinstance(value, bool):
                raise GenerationError(name, f"got {value!r}, expected true or false")
        for name in ("typed_control_tokens", "logprobs_of"):
            value, choices = getattr(self, name), SETTINGS[name].choices
            if value not in choices:
                raise GenerationError(name, f"got {value!r}, expected {' or '.join(choices)}")
        if self.min_new_tokens > self.max_new_tokens:
            raise GenerationError(
                "min_new_tokens",
                f"got {self.min_new_tokens}, expected at most {self.max_new_tokens}, the maximum number of new tokens",
            )
        if self.best_of is not None:
            require_integer("best_of", self.best_of, self.n)
        if not isinstance(self.cache_key, str):
            raise GenerationError("cache_key", f"got {self.cache_key!r}, expected a string")
        self._check_grammar()
        self._check_beams()

    @property
    def stops(self) -> tuple[str, ...]:
        return check_stops(self.stop)

    @property
    def search(self) -> Beams | None:
        """The settings of the beam search, None where no search is asked for."""
        if self.beams == 1:
            return None
        return Beams(
            count=self.beams,
            best=self.n,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            draft_beams=self.draft_beams,
        )

    @property
    def samples(self) -> int:
        """Number of texts that are written."""
        return self.n if self.best_of is None else self.best_of

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        for name, given in (
            ("ignore_eos", self.ignore_eos),
            ("min_new_tokens", self.min_new_tokens > 0),
            ("stop", bool(self.stops)),
            ("stop_token_ids", bool(self.stop_token_ids)),
        ):
            if given:
                raise GenerationError(name, "given with a grammar, which alone says where the text may end")

    def _check_beams(self) -> None:
        penalty = self.length_penalty
        if not isinstance(penalty, int | float) or isinstance(penalty, bool) or not abs(penalty) <= MAX_LENGTH_PENALTY:
            raise GenerationError(
                "length_penalty",
                f"got {penalty!r}, expected a number from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
            )
        if self.early_stopping not in (True, False, "never") or isinstance(self.early_stopping, int | float) != (
            isinstance(self.early_stopping, bool)
        ):
            raise GenerationError("early_stopping", f"got {self.early_stopping!r}, expected true, false or never")
        if self.draft_beams is not None:
            require_integer("draft_beams", self.draft_beams, self.beams)
        if self.beams == 1:
            for name, given in (
                ("length_penalty", penalty != 1),
                ("early_stopping", self.early_stopping is not False),
                ("draft_beams", self.draft_beams is not None),
            ):
                if given:
                    raise GenerationError(name, "given without a beam search; ask for beams, or leave it out")
            return
        for name, given in (
            ("best_of", self.best_of is not None),
            ("lenience", self.lenience != 1),
            ("trace", self.trace),
        ):
            if given:
                raise GenerationError(name, "given with beams, expected one of them")
        if self.n > self.beams:
            raise GenerationError("n", f"got {self.n}, expected at most {self.beams}, the number of beams")
        if self.draft_beams is not None and (not isinstance(self.k, int) or self.k == 0):
            raise GenerationError("draft_beams", f"given with k {self.k}, expected a number of steps to guess")


def require_integer(name: str, value: object, least: int) -> None:
    """Raise GenerationError where a setting is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise GenerationError(name, f"got {value!r}, expected a whole number of at least {least}")
