"""specrun as it is used: through click's runner, as a process, and at a terminal."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mxspec.runtime.commands.specrun import specrun

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
COMMAND = [sys.executable, "-m", "mxspec.runtime.start"]
PATIENCE = 30.0  # seconds; a loaded machine is slow


def slow(seconds: float) -> str:
    """The command as code, each call of its models slower by so much."""
    return f"""
import time
from mxspec.runtime.models import session
run = session.Session.run
session.Session.run = lambda *arguments: time.sleep({seconds}) or run(*arguments)
from mxspec.runtime.start import main
main()
"""


class Terminal:
    """A process whose three standard streams are a terminal; `code` may stand in for the command."""

    def __init__(self, *arguments: str, code: str | None = None) -> None:
        self._end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*(COMMAND if code is None else [sys.executable, "-c", code]), *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
            env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(theirs)
        self.shown = ""
        self._read = 0

    def read_until(self, text: str) -> str:
        """What is shown after what was read before, up to `text`."""
        deadline = time.monotonic() + PATIENCE
        while (end := self.shown.find(text, self._read)) < 0:
            assert self._more(deadline), f"{text!r} is not in {self.shown[self._read :]!r}, which is all"
        start, self._read = self._read, end + len(text)
        return self.shown[start : self._read]

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait(self) -> int:
        """The exit code, once the process has ended; what it still shows is read."""
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.process.wait(PATIENCE)

    def _more(self, deadline: float) -> bool:
        """Read what is there; False where the process has closed the terminal."""
        assert time.monotonic() < deadline, f"nothing comes after {self.shown[self._read :]!r}"
        if not select.select([self._end], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(self._end, 65536)
        except OSError:
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)

    def close(self) -> None:
        """Killed, if it still runs."""
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture(scope="session")
def bundle(tiny_bundles: dict[str, Path]) -> str:
    """One without a chat template."""
    return str(tiny_bundles["near"])


@pytest.fixture(scope="session")
def chat_bundle(bundle: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with a short chat template."""
    folder = tmp_path_factory.mktemp("chat") / "chat.bundle"
    shutil.copytree(bundle, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = {"bytes": len(TEMPLATE), "sha256": hashlib.sha256(TEMPLATE.encode()).hexdigest()}
    manifest["files"]["chat_template.jinja"] = entry
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """specrun in this process."""

    def run(*arguments: str, stdin: str | bytes | None = None, **settings: Any) -> Result:
        return CliRunner().invoke(specrun, arguments, input=stdin, **settings)

    return run


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """specrun in a process of its own, to its end."""

    def process(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        settings = {"stdout": subprocess.PIPE, "stdin": subprocess.DEVNULL, **settings}
        return subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, timeout=PATIENCE, **settings)

    return process


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """specrun at a terminal; killed where the test leaves it running."""
    begun: list[Terminal] = []

    def start(*arguments: str, code: str | None = None) -> Terminal:
        begun.append(Terminal(*arguments, code=code))
        return begun[-1]

    yield start
    for one in begun:
        one.close()
