"""The size of the house: lines, files and names may shrink, and grow only in a commit that says why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("formats", "recipes", "compile", "runtime", "evaluate", "serve")
SHORT = 25  # lines; a shorter file is part of another one

# name → what is there today; the aim is 44,000 lines in 420 files, 15 short ones, no name twice, 38,000 words
BUDGET = {
    "lines of the packages": 45_600,
    "files of the packages": 345,
    "short files of the packages": 9,
    "class names defined twice": 0,
    "lines of the laboratory": 9_000,
    "words of README and documents": 35_200,
}


def python_files(*folders: str) -> Iterator[str]:
    for folder in folders:
        yield from (path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))


def measured() -> dict[str, int]:
    sources = list(python_files(*PACKAGES))
    names = Counter(name for source in sources for name in re.findall(r"^class (\w+)", source, re.MULTILINE))
    lines = [len(source.splitlines()) for source in sources]
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return {
        "lines of the packages": sum(lines),
        "files of the packages": len(lines),
        "short files of the packages": sum(count < SHORT for count in lines),
        "class names defined twice": sum(count > 1 for count in names.values()),
        "lines of the laboratory": sum(len(source.splitlines()) for source in python_files("bench")),
        "words of README and documents": sum(len(document.read_text().split()) for document in documents),
    }


@pytest.mark.parametrize("what", BUDGET)
def test_the_house_keeps_to_its_budget(what: str) -> None:
    assert measured()[what] <= BUDGET[what]
