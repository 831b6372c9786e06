"""A chat at the terminal: what is typed is answered, turn by turn, and commands begin with a slash."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.errors import GenerationError, MxspecError, did_you_mean
from mxspec.runtime.cli.interrupts import on_interrupt, raising_interrupts
from mxspec.runtime.cli.output import write_file
from mxspec.runtime.cli.report import closing_line
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands.answer import on_terminal, write_answer

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine

COMMANDS = {
    "/reset": "forget all turns",
    "/system TEXT": "change the system message; without TEXT remove it",
    "/save FILE": "write the messages and their token ids as JSON",
    "/help": "this",
    "/exit": "leave, as Ctrl-D does",
}
HELP = "\n".join(
    [
        *(f"{command:14}{what}" for command, what in COMMANDS.items()),
        "Ctrl-C ends the answer, which stays as far as it came. A space before a slash makes it a message.",
    ]
)
GREETING = "Ctrl-C ends an answer, Ctrl-D leaves, /help says more."


class ChatSession:
    """Owns a conversation with an engine; each turn reads only what is new, for the ids of all before are kept.

    `defaults` are those of each turn's Request. Raises GenerationError where the template knows no system message.
    """

    def __init__(self, engine: Engine, defaults: Defaults) -> None:
        from mxspec.runtime.text.conversation import Conversation

        self._engine = engine
        self._settings = defaults.for_request(engine, {})
        ends = engine.bundle.manifest.tokenizer.eos_token_ids
        template = engine.template_for(defaults.settings.get("typed_control_tokens", "control"))
        self._conversation = Conversation(template, engine.tokenizer, defaults.system, ends)

    def run(self) -> int:
        """Answer until there is no more input; the exit code."""
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() its line editing and what was typed before
        with on_interrupt(_nothing, _nothing):  # between answering and reading too
            self._talk()
        return 0

    def _talk(self) -> None:
        _note(GREETING)
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if not self._obey(line):
                        break
                else:
                    self._answer(line)
            except MxspecError as error:
                _note(f"error: {error}", fg="red")

    def _answer(self, text: str) -> None:
        ids = self._conversation.prompt_for(text)
        handle = self._engine.generate(ids, **self._settings)
        with on_interrupt(handle.cancel, handle.cancel):
            answer = write_answer(handle, self._settings["max_new_tokens"], [])
        if answer.token_ids:  # an answer that was cut off stays as far as it came
            self._conversation.add_answer(answer.token_ids, answer.text)
        _note(closing_line(answer.statistics, answer.reason))

    def _obey(self, line: str) -> bool:
        """Do what a command says; whether the session goes on."""
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/exit" | "/quit":
                return False
            case "/help":
                _note(HELP)
            case "/reset":
                self._conversation.reset()
                _note("All turns are forgotten.")
            case "/system":
                self._conversation.set_system(rest.strip() or None)
                _note("The system message is changed." if rest.strip() else "There is no system message.")
            case "/save":
                self._save(rest.strip())
            case _:
                known = [name.split()[0] for name in COMMANDS]
                raise GenerationError(command, f"unknown command{did_you_mean(command, known)}; /help names them")
        return True

    def _save(self, name: str) -> None:
        if not name:
            raise GenerationError("/save", "expected the name of a file after it")
        path = Path(name).expanduser()
        write_file("/save", path, json.dumps(self._conversation.as_dict(), ensure_ascii=False, indent=2))
        _note(f"Saved in {path}.")


def _read_line() -> str | None:
    """A typed line, without surrogates; None where the input has ended. Ctrl-C drops the line."""
    while True:
        try:
            with raising_interrupts():
                return input("> " if on_terminal() else "").encode(errors="replace").decode()
        except EOFError:
            click.echo(err=not on_terminal())
            return None
        except UnicodeDecodeError:
            _note("error: what was typed is not UTF-8", fg="red")
        except KeyboardInterrupt:
            click.echo(err=not on_terminal())


def _nothing() -> None:
    """Ctrl-C has nothing to end here."""


def _note(text: str, **style: Any) -> None:
    """Print a line that is not part of the chat, dim unless `style` says otherwise."""
    click.secho(text, err=not on_terminal(), **(style or {"dim": True}))
