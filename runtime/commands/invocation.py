"""The options of `specrun`, and which of them do nothing together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mxspec.formats.errors import GenerationError


@dataclass(frozen=True, slots=True)
class Invocation:
    """What `specrun` was called with; `options` are those of the request (request_options)."""

    bundle: Path
    prompt: str | None
    prompt_file: Path | None
    chat: bool
    system: str | None
    raw: bool
    task: str | None
    prompt_cache: Path | None
    slots: int | None
    threads: int | None
    json_output: bool
    prompts: Path | None
    out: Path | None
    trace: Path | None
    compared: bool
    picture: Path | None
    options: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Invocation:
        """Raises GenerationError for an option that does nothing beside the others."""
        own = {field.name for field in fields(cls)} - {"options"}
        others = {name: value for name, value in given.items() if name not in own}
        invocation = cls(**{name: given[name] for name in own}, options=others)
        for name, mistaken, beside in _MISTAKES:
            if mistaken(invocation):
                raise GenerationError(name, f"given {beside}")
        return invocation

    @property
    def talks(self) -> bool:
        """Whether it is a chat of many turns."""
        asks_once = self.prompt is not None or self.prompt_file is not None
        return self.chat and not asks_once and sys.stdin is not None and sys.stdin.isatty()

    @property
    def answers_file(self) -> bool:
        """Whether it answers the lines of a file."""
        return self.prompts is not None

    def has(self, *names: str) -> bool:
        """Whether one of these options of the request was given."""
        return any(self.options[name] is not None for name in names)


_MISTAKES: tuple[tuple[str, Callable[[Invocation], bool], str], ...] = (
    ("--raw", lambda call: call.raw and call.chat, "with --chat, which needs the chat template"),
    ("--system", lambda call: call.raw and call.system is not None, "with --raw, which leaves the chat template out"),
    ("--out", lambda call: call.out is not None and not call.answers_file, "without --prompts"),
    ("--prompts", lambda call: call.answers_file and call.out is None, "without --out"),
    ("PROMPT", lambda call: call.answers_file and call.prompt is not None, "with --prompts, which holds them all"),
    (
        "--prompt-file",
        lambda call: call.answers_file and call.prompt_file is not None,
        "with --prompts, which holds them all",
    ),
    ("--chat", lambda call: call.answers_file and call.chat, "with --prompts, whose lines are answered one by one"),
    ("--json", lambda call: call.talks and call.json_output, "with a chat of many turns; /save writes it to a file"),
    ("--task", lambda call: call.talks and call.task is not None, "with a chat of many turns"),
    ("--n", lambda call: call.talks and call.has("n"), "with a chat of many turns, which goes on from one answer"),
    (
        "--best-of",
        lambda call: call.talks and call.has("best_of"),
        "with a chat of many turns, which shows what it writes",
    ),
    (
        "--best-of",
        lambda call: call.trace is not None and call.has("best_of"),
        "with --trace, which shows all that is written",
    ),
    (
        "--trace",
        lambda call: call.trace is not None and (call.talks or call.answers_file),
        "with a chat or --prompts, but a trace is of one answer",
    ),
    (
        "--compare",
        lambda call: (
            call.compared
            and (call.talks or call.answers_file or call.trace is not None or call.has("n", "best_of", "beams"))
        ),
        "with an option of several answers; it shows one, token by token",
    ),
    (
        "--prompt-cache",
        lambda call: call.prompt_cache is not None and (call.talks or call.answers_file or call.compared),
        "with a chat, --prompts or --compare; it goes with one answer to one prompt",
    ),
    (
        "--picture",
        lambda call: call.picture is not None and not call.compared,
        "without --compare, whose result it saves",
    ),
    (
        "--slots",
        lambda call: call.compared and call.slots is not None,
        "with --compare, which writes one text at a time",
    ),
    (
        "--logprobs",
        lambda call: call.has("logprobs") and not (call.json_output or call.answers_file),
        "with neither --json nor --prompts, which print them",
    ),
)
