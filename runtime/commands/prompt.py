"""The prompt, from where it was given."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

import click

from mxspec.formats.errors import GenerationError
from mxspec.runtime.cli.command import read_text


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from an argument, a file, or standard input; what is piped beside the others follows an empty line.

    A file and standard input lose one newline at their end, so that `echo` and editors give what an argument gives.
    Raises GenerationError where the prompt is empty, not UTF-8, or given twice.
    """
    if prompt is not None and prompt_file is not None:
        raise GenerationError("prompt", "got both PROMPT and --prompt-file, expected one of them")
    given = [] if prompt is None or prompt == "-" else [_checked_argument(prompt)]
    if prompt_file is not None:
        given = [_without_newline(read_text(prompt_file, "--prompt-file"))]
    if not given or _is_piped():
        given.append(_without_newline(_read_standard_input()))
    text = "\n\n".join(filter(None, given))
    if not text:
        raise GenerationError(
            "prompt", "got an empty text, expected at least one character; give PROMPT or --prompt-file"
        )
    return text


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: no terminal, and not /dev/null."""
    if sys.stdin is None or sys.stdin.isatty():
        return False
    with suppress(OSError):  # a stream in memory, of a test
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    return True


def _read_standard_input() -> str:
    if sys.stdin is None:
        raise GenerationError("prompt", "standard input is closed; give PROMPT or --prompt-file")
    if sys.stdin.isatty():
        click.echo("Type the prompt; end it with Ctrl-D on a line of its own.", err=True)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise GenerationError(
            "prompt", f"standard input is not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start}"
        ) from None
    except OSError as error:
        raise GenerationError("prompt", f"standard input cannot be read: {error.strerror}") from None


def _checked_argument(text: str) -> str:
    """Raise GenerationError for an argument that is not UTF-8: Python hands over its bytes as surrogates (PEP 383)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GenerationError("prompt", f"the argument is not UTF-8 at character {error.start}") from None
    return text


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\r\n") else text.removesuffix("\n")
