"""A sampling parameter is declared once: whoever may ask for one knows all of them, and the documents name each."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from mxspec.formats.manifest import SamplingDefaults
from mxspec.formats.sampling import BUNDLED, PARAMETERS
from mxspec.runtime.commands.batch_lines import REQUEST_FIELDS
from mxspec.runtime.commands.specrun import specrun
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.settings import OUTPUT, SETTINGS
from mxspec.serve.commands.specbatch import specbatch
from mxspec.serve.routes import chat, completions
from mxspec.serve.texts.fields import OF_OPENAI, OF_OTHERS, Own, parse_body

DOCS = Path(__file__).parents[2] / "docs"
GIVEN = {"number": 0.5, "integer": 3, "bias": {"7": -1.5}}


def test_requests_defaults_and_lines_of_batch_jobs_have_the_declared_ones() -> None:
    names = set(PARAMETERS)
    assert {field.name for field in fields(Sampling)} == names
    assert names <= {field.name for field in fields(Request)}
    assert names <= set(REQUEST_FIELDS)
    assert tuple(SamplingDefaults.model_fields) == BUNDLED
    asked = Request(prompt="x")
    assert all(getattr(asked, name) is None for name in BUNDLED)


@pytest.mark.parametrize("command", [specrun, specbatch])
def test_the_help_of_commands_has_an_option_for_each(command: object) -> None:
    shown = CliRunner().invoke(command, ["--help"], terminal_width=200).output  # type: ignore[arg-type]
    for name, parameter in PARAMETERS.items():
        (line,) = (line for line in shown.splitlines() if line.split()[:1] == [f"--{name.replace('_', '-')}"])
        assert parameter.help.split("  ")[0] in line
    words = " ".join(shown.split())
    for name, setting in SETTINGS.items():
        offered = bool(setting.group) and (command is specrun or setting.group != OUTPUT)  # a part has its own columns
        assert (f"--{name.replace('_', '-')} " in shown) == offered
        assert not offered or setting.help.split("  ")[0] in words


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_server_takes_each_at_one_place(name: str) -> None:
    value = GIVEN[PARAMETERS[name].kind]
    said = {name: value} if name in OF_OPENAI else {"mxspec": {name: value}}
    bodies = {
        chat.ChatRequest: {"messages": [{"role": "user", "content": "hello"}]},
        completions.CompletionRequest: {"prompt": "hello"},
    }
    assert (name in OF_OPENAI) != (name in Own.model_fields)
    for model, body in bodies.items():
        asked = parse_body(json.dumps(body | said).encode(), model, {})  # type: ignore[type-var]
        settings = asked.settings("key", greedy=False)
        assert settings[name] == ({7: -1.5} if name == "logit_bias" else value)
        assert getattr(Request(prompt="x", **settings), name) == settings[name]


@pytest.mark.parametrize("document", ["engine.md", "serve.md"])
def test_the_tables_of_documents_name_each(document: str) -> None:
    rows = [line for line in (DOCS / document).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [name for name in PARAMETERS if not any(f"`{name}`" in row for row in rows)] == []


def test_documents_name_each_setting() -> None:
    engine, serve = ((DOCS / name).read_text(encoding="utf-8") for name in ("engine.md", "serve.md"))
    assert [name for name in SETTINGS if f"`{name}`" not in engine and f"`{name}=" not in engine] == []
    named = [*(name for name, setting in SETTINGS.items() if setting.served), *OF_OTHERS]
    assert [name for name in named if f"`{name}`" not in serve] == []


def test_the_table_of_a_bundles_defaults_names_each() -> None:
    (row,) = (
        line for line in (DOCS / "bundle.md").read_text(encoding="utf-8").splitlines() if "| `sampling` |" in line
    )
    assert [name for name in BUNDLED if f"`{name}`" not in row] == []
