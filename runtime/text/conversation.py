"""A chat that keeps the ids it has: what was generated is not encoded again, so the next turn finds all of it cached.

    first prompt     <user> hi <assistant>                                          the rendered text, encoded
    answer                                 Hello . <end>                            as it was generated
    second prompt    <user> hi <assistant> Hello . <end> <user> again <assistant>   these two, and the rest encoded

Encoding the answer's text again gives other ids in two of three sampled answers, for many ids have the same text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from mxspec.runtime.text.chat import ChatTemplate, Message
from mxspec.runtime.text.detokenize import detokenizer
from mxspec.runtime.text.tokenizer import encode_rendered


@dataclass(frozen=True, slots=True)
class Turn:
    """A rendered chat up to where the answer begins, the ids that stand for it, and the answer to it."""

    messages: list[Message]
    text: str
    ids: list[int]
    answer: str = ""
    answer_ids: list[int] = field(default_factory=list)


class Conversation:
    """A chat turn by turn: `prompt_for` the next thing the user says, `add_answer` what was generated.

    `eos_token_ids` are the tokens that end an answer; without them, any special token at its end does. Nothing is kept
    of a prompt that got no answer.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        system: str | None = None,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        special = (id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        self._ends = frozenset(eos_token_ids or special)
        self._system: str | None = None
        self._messages: list[Message] = []
        self._last: Turn | None = None  # which was answered
        self._asked: Turn | None = None
        self._began = datetime.now()  # in every turn: a later date would change the first one
        self.set_system(system)

    @property
    def messages(self) -> list[Message]:
        """All messages, that of the system first."""
        return [*self._instructions(), *self._messages]

    def prompt_for(self, text: str) -> list[int]:
        """Ids of the whole chat with this as its next message; raises GenerationError where the template refuses it."""
        messages = [*self._messages, {"role": "user", "content": text}]
        rendered = self._template.render([*self._instructions(), *messages], now=self._began)
        self._asked = Turn(messages, rendered, self._continued(rendered) or self._encode(rendered))
        return list(self._asked.ids)

    def add_answer(self, ids: Sequence[int], text: str) -> None:
        """Keep the answer to the last prompt: the ids that were generated, an end of text too, and the text shown."""
        assert self._asked is not None, "prompt_for comes first"
        kept = list(ids)
        if kept and kept[-1] in self._ends:  # where it is no special token, its text was shown
            text = text.removesuffix(self._spelling(kept[-1]))
        self._messages = [*self._asked.messages, {"role": "assistant", "content": text}]
        self._last, self._asked = replace(self._asked, answer=text, answer_ids=kept), None

    def reset(self) -> None:
        """Forget all turns; what the system says stays."""
        self._messages, self._last, self._asked = [], None, None
        self._began = datetime.now()

    def set_system(self, text: str | None) -> None:
        """Change what the system says, for all turns; raises GenerationError where the template knows no system."""
        before, self._system = self._system, text
        try:
            self._template.render([*self._instructions(), {"role": "user", "content": "?"}], now=self._began)
        except Exception:
            self._system = before
            raise

    def as_dict(self) -> dict[str, Any]:
        """The messages, and the ids of all turns as the model has read and written them."""
        last = self._last
        ids = [*last.ids, *last.answer_ids] if last else []
        return {"messages": [dict(message) for message in self.messages], "token_ids": ids}

    def _instructions(self) -> list[Message]:
        return [] if self._system is None else [{"role": "system", "content": self._system}]

    def _continued(self, rendered: str) -> list[int] | None:
        """The ids of the last turn and of what the text adds to it; None where the text changes what was before.

        A template may render history in another way than it was, say without an answer's reasoning. It may add and
        leave out white space around an answer: the ids say what the model wrote.
        """
        last = self._last
        if last is None or not rendered.startswith(last.text):
            return None
        rest = _after_answer(rendered[len(last.text) :], last.answer)
        if rest is None:
            return None
        ids = list(last.answer_ids)
        end = ids.pop() if ids and ids[-1] in self._ends else None
        shown = self._shown_ids(last, ids)
        if shown is None:
            return None
        kept, unread = shown
        if end is not None and not unread and rest.lstrip().startswith(self._spelling(end)):
            rest = rest.lstrip().removeprefix(self._spelling(end))
            return [*last.ids, *kept, end, *self._encode_after(self._spelling(end), rest)]
        return [*last.ids, *kept, *self._encode_after("\n", unread + rest)]

    def _shown_ids(self, last: Turn, ids: list[int]) -> tuple[list[int], str] | None:
        """The ids whose text was shown, and the shown part of the next id; None where the answer is not their text.

        The text ends before the ids do where a stop string ended it.
        """
        stream = detokenizer(self._tokenizer, last.ids)
        pieces = [stream.push(token) for token in ids]
        text = "".join(pieces) + stream.finish()
        if text.strip() == last.answer.strip():
            return ids, ""
        if not text.startswith(last.answer):
            return None
        lengths = [0, *accumulate(map(len, pieces))]
        shown = max(length for length in lengths if length <= len(last.answer))
        return ids[: lengths.index(shown)], last.answer[shown:]

    def _encode_after(self, before: str, text: str) -> list[int]:
        """Ids of a text that follows another: some tokenizers put a space before a text on its own."""
        for marker in (before, "\n"):
            first = self._encode(marker)
            ids = self._encode(marker + text)
            if ids[: len(first)] == first:
                return ids[len(first) :]
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return encode_rendered(*self._template.spelled(self._tokenizer, text))

    def _spelling(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""


def _after_answer(text: str, answer: str) -> str | None:
    """The text after the answer that it begins with, ignoring white space around the answer; None if it does not."""
    core = answer.strip()
    if not core:
        return text.removeprefix(answer)
    if not text.lstrip().startswith(core):
        return None
    return text.lstrip().removeprefix(core).removeprefix(answer[len(answer.rstrip()) :])
