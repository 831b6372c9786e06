"""The documents, and the commands that they print in blocks of code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from mxspec.compile.commands.speccompile import main as speccompile
from mxspec.compile.commands.specdraft import main as specdraft
from mxspec.evaluate.bench.cli import main as specbench
from mxspec.evaluate.speccheck import main as speccheck
from mxspec.evaluate.tasks.lm_eval_command import main as mxspec_eval
from mxspec.runtime.commands.specrun import specrun
from mxspec.serve.commands.specbatch import specbatch
from mxspec.serve.commands.specserve import specserve

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMANDS: dict[str, click.Command] = {
    "speccompile": speccompile,
    "specdraft": specdraft,
    "specrun": specrun,
    "speccheck": speccheck,
    "specbench": specbench,
    "specserve": specserve,
    "specbatch": specbatch,
    "mxspec-eval": mxspec_eval,
}


def code_lines(text: str) -> Iterator[str]:
    """Lines of fenced shell and of indented code; lines that end with a backslash go on."""
    fence, kept = None, ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line[3:].strip() if fence is None else None
            continue
        if fence in ("sh", "console") or (fence is None and line.startswith("    ")):
            line = line.strip().removeprefix("$ ")
            if line.endswith("\\"):
                kept += line[:-1] + " "
                continue
            yield kept + line
            kept = ""


def commands_of(document: Path) -> list[list[str]]:
    """The words of each of mxspec's commands that a document prints, without comments."""
    found = []
    for line in code_lines(document.read_text()):
        for part in re.split(r" && | \| ", line):
            if part.split(" ")[0] in COMMANDS:
                found.append(shlex.split(part.removesuffix(" &"), comments=True))
    return found


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines outside tables, code, generated parts, and lines that cannot be broken."""
    fenced = generated = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        generated = (generated or line.startswith("<!-- ")) and not line.startswith("<!-- end")
        if not (fenced or generated or line.startswith(("|", "    ", "![", "#", "<!--", "```"))):
            yield number, line
