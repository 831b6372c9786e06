"""The figures in the documents are those of the records."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_tables_and_pictures_are_what_the_records_say() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "bench", "tables", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert check.returncode == 0, f"run python -m bench tables: {check.stderr}"


def test_a_picture_that_is_not_its_records_is_found(
    tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tables.DRAWN, tmp_path / "drawn")
    monkeypatch.setattr(tables, "DRAWN", tmp_path / "drawn")
    monkeypatch.setattr(tables, "PICTURES", (known := dict(list(tables.PICTURES.items())[:1])))
    ((name, _),) = known.items()
    kept = tmp_path / "drawn" / f"{name}.svg"
    assert tables.stale_pictures([name], check=True)  # the others are shown nowhere
    assert tables.stale_pictures([name], check=False)
    assert [path.stem for path in kept.parent.iterdir()] == [name]
    assert not tables.stale_pictures([name], check=True)
    drawn = kept.read_text()
    kept.write_text(drawn.replace(" 1", " 2", 1))
    assert tables.stale_pictures([name], check=True)
    tables.stale_pictures([name], check=False)
    assert kept.read_text() == drawn
