"""Ctrl-C at any moment, and a standard output that cannot be written: a line at most, and an exit code that says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mxspec.runtime.cli.interrupts import on_interrupt
from mxspec.runtime.models import session

# Ctrl-C comes at the moment when a module is looked for.
INTERRUPTED_IMPORT = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = {argv!r}
from {module} import {entry}
{entry}()
"""


def interrupted_import(name: str, *argv: str, module: str = "mxspec.runtime.start", entry: str = "main") -> str:
    return INTERRUPTED_IMPORT.format(name=name, argv=list(argv), module=module, entry=entry)


OTHERS = [
    (["speccompile", "list"], "mxspec.compile.start", "main", "click"),
    (["speccompile", "list"], "mxspec.compile.start", "main", "pydantic"),
    (["speccompile", "no/where", "-o", "x"], "mxspec.compile.start", "main", "torch"),
    (["speccheck", "accuracy", "x", "--text", "y"], "mxspec.evaluate.start", "speccheck", "numpy"),
    (["specbench", "model", "none"], "mxspec.evaluate.start", "specbench", "onnxruntime"),
    (["specserve", "no.bundle"], "mxspec.serve.start", "specserve", "starlette"),
]
MODULES = ["click", "numpy", "mxspec.runtime.cli.command", "rich", "onnxruntime", "tokenizers", "mxspec.runtime.engine"]
SPECRUN = [(["specrun", "BUNDLE", "hello"], "mxspec.runtime.start", "main", name) for name in MODULES]


@pytest.mark.parametrize(("argv", "module", "entry", "name"), [*SPECRUN, *OTHERS])
def test_ctrl_c_during_the_first_imports(
    bundle: str, argv: list[str], module: str, entry: str, name: str, tmp_path: Path
) -> None:
    argv = [bundle if word == "BUNDLE" else word for word in argv]
    code = interrupted_import(name, *argv, module=module, entry=entry)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "error: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_the_scripts_begin_there() -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {
        "speccompile": "mxspec.compile.start:main",
        "specdraft": "mxspec.compile.start:specdraft",
        "specrun": "mxspec.runtime.start:main",
        "speccheck": "mxspec.evaluate.start:speccheck",
        "specbench": "mxspec.evaluate.start:specbench",
        "mxspec-eval": "mxspec.evaluate.start:mxspec_eval",
        "specserve": "mxspec.serve.start:specserve",
        "specbatch": "mxspec.serve.start:specbatch",
    }


def test_ctrl_c_amid_a_compile_leaves_nothing(tmp_path: Path) -> None:
    """As somebody types it, SIGINT and all: what was written is removed."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from mxspec.compile import pipeline\n"
        "def stop(*_, **__):\n"
        "    assert os.listdir('.') == ['x.bundle.partial']\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "pipeline.open_models = stop\n"
        "sys.argv = ['speccompile', 'smollm2', '-o', 'x.bundle']\n"
        "from mxspec.compile.start import main\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, "", "error: interrupted")
    assert not list(tmp_path.iterdir())


def test_a_background_job_of_a_script_ignores_ctrl_c(bundle: str) -> None:
    """Shells begin it with SIGINT ignored, so that Ctrl-C is for the script."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    code += interrupted_import("click", "specrun", bundle, "hello")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0
    assert "TTFT" in result.stderr


@pytest.mark.parametrize("json_output", [False, True])
@pytest.mark.parametrize("after", [1, 5])
def test_ctrl_c_ends_the_text_cleanly(
    bundle: str, run: Any, json_output: bool, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    score = session.Session.run

    def interrupted(self: session.Session, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after:
            os.kill(os.getpid(), signal.SIGINT)
        if calls >= after:
            time.sleep(0.2)
        return score(self, *arguments)

    monkeypatch.setattr(session.Session, "run", interrupted)
    result = run(bundle, "hello", "--k", "0", *["--json"] * json_output)
    assert result.exit_code == 130
    if json_output:
        report = json.loads(result.stdout)
        assert report["finish_reason"] == "cancelled"
        assert after - 1 <= len(report["token_ids"]) <= after + 2
    else:
        assert result.stdout.endswith("\n")
        assert result.stderr.endswith("ended by cancelled\n")
    assert "Traceback" not in result.output


def test_a_second_ctrl_c_does_not_wait() -> None:
    acts = []
    with on_interrupt(lambda: acts.append("first")):
        signal.raise_signal(signal.SIGINT)
        assert acts == ["first"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_ctrl_c_alone() -> None:
    seen = []

    def work() -> None:
        with on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--help"]])
def test_a_full_standard_output_is_one_line(bundle: str, process: Any, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = process(bundle, "hello", *arguments, stdout=full)
    assert result.returncode == 1
    assert result.stderr == "error: standard output: No space left on device\n"


def test_a_full_standard_output_is_one_line_for_much_text_too(process: Any) -> None:
    """More than a buffer: what fails is no flush."""
    code = (
        "import click; from mxspec.runtime.cli.command import Command, print_json\n"
        "click.command(cls=Command)(lambda: print_json({'text': 'x' * 100000}))()"
    )
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--help"]])
def test_a_broken_pipe_ends_it_silently(bundle: str, process: Any, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = process(bundle, "hello", *arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_standard_stream_that_is_closed(bundle: str, process: Any, number: int) -> None:
    arguments = [] if number == 0 else ["hello"]
    result = process(bundle, *arguments, preexec_fn=lambda: os.close(number))
    assert (result.returncode, result.stderr) == {
        0: (1, "error: prompt: standard input is closed; give PROMPT or --prompt-file\n"),
        1: (1, "error: standard output: Bad file descriptor\n"),
        2: (0, ""),
    }[number]
