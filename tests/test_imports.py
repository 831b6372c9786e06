"""Imports go one way: by the table of docs/architecture.md, which this test reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
PACKAGES = {package: (re.findall(r"\w+", imports), re.findall(r"\w+", rooms)) for package, imports, rooms in ROWS}
COMPILER = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir"}


def imported(file: Path) -> Iterator[str]:
    """Dotted names of what a file imports anywhere, each with what is taken out of the module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden(package: str, file: Path) -> Iterator[str]:
    """What a file of the package imports against the table."""
    (packages, rooms), room = PACKAGES[package], file.relative_to(ROOT / package).with_suffix("").parts[0]
    for name in imported(file):
        top, other, target = (*name.split("."), "", "")[:3]
        before = rooms[: rooms.index(room) + 1] if room in rooms else ()
        if (top in COMPILER and package in ("formats", "runtime", "serve")) or (
            top == "mxspec" and (other not in packages if other != package else rooms and target not in before)
        ):
            yield f"{file.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_order_of_the_architecture(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    assert not [line for file in files if file != ROOT / package / "__init__.py" for line in forbidden(package, file)]


def test_the_table_has_each_package() -> None:
    assert {*PACKAGES} == {path.name for path in (ROOT / "src" / "mxspec").iterdir() if path.is_symlink()}


def test_each_folder_has_its_sentence() -> None:
    described = {
        *re.findall(r"^\| `([\w/]+)` \| [^|]+ \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    }
    folders = {file.parent.relative_to(ROOT) for top in (*PACKAGES, "bench") for file in (ROOT / top).rglob("*.py")}
    assert {str(folder) for folder in folders} <= described
