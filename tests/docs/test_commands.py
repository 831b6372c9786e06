"""Every command in a document is one that exists, and those that are cheap are run as they are printed."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.docs.documented import COMMANDS, DOCUMENTS, ROOT, commands_of, prose_lines

PRINTED = [
    pytest.param(words, id=f"{document.name}: {shlex.join(words)}")
    for document in DOCUMENTS
    for words in commands_of(document)
]
RUN = {
    tuple(words)
    for name in ("README.md", "docs/commands.md")
    for words in commands_of(ROOT / name)
    if words[0] == "specrun" or words[:2] in (["speccompile", "list"], ["speccompile", "inspect"])
} | {("speccompile", "explain", "demo")}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """What click does before it calls a command: raises UsageError for an unknown option or a bad value."""
    context = command.make_context(name, words, parent=parent)
    if isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None
        assert found is not None
        parse(found, name, rest, context)


@pytest.fixture(scope="module")
def place(demo_with_baseline: Path, t5_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with what the documents' commands name."""
    folder = tmp_path_factory.mktemp("documented")
    # The demo pair under the names of bundles, with a chat template, as bundles of chat models have one.
    bundle = shutil.copytree(demo_with_baseline, folder / "my.bundle")
    (bundle / "chat_template.jinja").write_text(TEMPLATE)
    manifest = json.loads((bundle / "manifest.json").read_text())
    digest = hashlib.sha256(TEMPLATE.encode()).hexdigest()
    manifest["files"]["chat_template.jinja"] = {"bytes": len(TEMPLATE.encode()), "sha256": digest}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    (folder / "smollm2.bundle").symlink_to(bundle)

    reader = shutil.copytree(t5_bundle, folder / "t5.bundle")
    manifest = json.loads((reader / "manifest.json").read_text())
    manifest["recipe"]["tasks"] = {"german": "translate: "}
    (reader / "manifest.json").write_text(json.dumps(manifest))

    (folder / "my.txt").write_text("def read_lines(path):\n    with open(path) as lines:\n")
    (folder / "in.jsonl").write_text('{"prompt": "def write_lines(path):", "max_new_tokens": 4}\n')
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the folders whose existence an option checks."""
    folder = tmp_path_factory.mktemp("folders")
    (folder / "recipes").symlink_to(ROOT / "recipes")
    for checkpoint in ("OWNER/NAME", "CHECKPOINT"):
        (folder / checkpoint).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("words", PRINTED)
def test_a_printed_command_exists(words: list[str], folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders)
    parse(COMMANDS[words[0]], words[0], words[1:])


@pytest.mark.demo
@pytest.mark.parametrize("words", sorted(RUN), ids=shlex.join)
def test_a_cheap_command_does_what_is_said(
    words: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = CliRunner().invoke(COMMANDS[words[0]], list(words[1:]), input="hello\n")
    assert result.exit_code == 0, result.output


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.UsageError, match="--drafer"):
        parse(COMMANDS["specrun"], "specrun", ["my.bundle", "--drafer", "suffix"])
    with pytest.raises(click.UsageError, match="most"):
        parse(COMMANDS["speccheck"], "speccheck", ["lossless", "my.bundle", "--effort", "most"])


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, *sorted((ROOT / "recipes").glob("*/README.md"))],
    ids=lambda document: str(document.relative_to(ROOT)),
)
def test_lines_of_a_document_fit(document: Path) -> None:
    longer = [number for number, line in prose_lines(document.read_text()) if len(line) > 120]
    assert not longer, f"{document.name}: lines {longer} have more than 120 characters"
