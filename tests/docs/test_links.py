"""Links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documented import DOCUMENTS, ROOT


def anchors(document: Path) -> set[str]:
    """The names that a Markdown page gives its headings."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() and not target.suffix:
            target = target.with_suffix(".md")  # docs/engine.md links to lossless
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{document.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{document.name}: {link}"


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [path.name for path in DOCUMENTS if path.name != "index.md" and f"{path.name})" not in index] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    folders = "bench|compile|deploy|docs|evaluate|formats|recipes|runtime|scripts|serve|tests"
    named = re.findall(rf"`((?:{folders})/[\w/.-]*)`", document.read_text())
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []
