"""What documents claim has its source: drafters and verifiers a paper or a record, records a file."""

from __future__ import annotations

import re

from mxspec.runtime import drafters, verifiers
from tests.docs.documented import DOCUMENTS, ROOT

RECORDS = {
    path.relative_to(ROOT / "bench" / "records").with_suffix("").as_posix()
    for path in (ROOT / "bench" / "records").rglob("*.json")
}
SOURCES = dict(re.findall(r"^\| `(\w+)`.* \| ([^|]+) \|$", (ROOT / "docs" / "engine.md").read_text(), re.MULTILINE))


def test_each_drafter_and_verifier_names_its_paper_or_its_record() -> None:
    unproven = [
        name
        for name in (*drafters.NAMES, *verifiers.NAMES)
        if not re.search(r" et al\. \(\d{4}\)", SOURCES.get(name, ""))
        and not RECORDS & {*re.findall(r"`([\w/]+)`", SOURCES.get(name, ""))}
    ]
    assert unproven == []


def test_each_record_that_a_document_names_exists() -> None:
    named = {
        (document.name, record)
        for document in DOCUMENTS
        for group in re.findall(r"records? ((?:`[\w/]+`(?:,\s|\sand\s)?)+)", document.read_text())
        for record in re.findall(r"`([\w/]+)`", group)
    }
    assert named
    assert {(document, record) for document, record in named if record not in RECORDS} == set()
