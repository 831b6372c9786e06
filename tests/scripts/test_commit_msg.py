"""The hook that reads commit messages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HOOK = Path(__file__).parents[2] / "scripts" / "hooks" / "commit-msg"


def refusal(folder: Path, message: str) -> str:
    """The hook's line, empty where it takes the message."""
    path = folder / "COMMIT_EDITMSG"
    path.write_text(message, encoding="utf-8")
    done = subprocess.run([HOOK, path], capture_output=True, text=True)
    assert (done.returncode == 0) == (done.stderr == "")
    assert done.stderr.count("\n") <= 1
    return done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Add a hook",
        "Add a hook\n",
        "é" * 72,
        "Add a hook\n\nBecause subjects grew long. " + "x" * 100,
        "# what git writes\n\nAdd a hook\n# Changes to be committed:\n\nThe reason",
        "Add a hook\n# ------------------------ >8 ------------------------\ndiff --git a b\n",
        'Revert "' + "x" * 80 + '"',
        "fixup! " + "x" * 80,
    ],
)
def test_a_good_message_is_taken(tmp_path: Path, message: str) -> None:
    assert refusal(tmp_path, message) == ""


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("", "the subject is empty"),
        ("\n# only a comment\n", "the subject is empty"),
        ("x" * 73, "the subject has 73 characters, expected at most 72"),
        ("é" * 73 + "\n\nbody", "the subject has 73 characters"),
        ("Add a hook.", "the subject ends in a period"),
        ("Add a hook. \n\nbody", "the subject ends in a period"),
        ("Add a hook\nbody", "line 2 is not empty"),
    ],
)
def test_a_bad_message_is_refused_in_one_line(tmp_path: Path, message: str, says: str) -> None:
    assert refusal(tmp_path, message).startswith(f"commit message: {says}")
