"""What llama.cpp makes of the published model, SmolLM2-135M-Instruct in Q4_1: ids of texts, and perplexity.

    python -m bench published-model build/llama_cpp

It prints what tests/real/test_published_model.py expects of ours. The peer is built into the folder, or found there.
The perplexity is LICENSE's, in windows as llama-perplexity cuts them.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench.llama_cpp.build import build_peer
from bench.llama_cpp.perplexity import of_peer
from mxspec.runtime.cli.command import Command

ROOT = Path(__file__).parents[2]
TEXT, WINDOWS = ROOT / "LICENSE", 4
TEXTS = 200
PIECES = (
    *(
        "the",
        "Quick",
        "fox's",
        "don't",
        "I'LL",
        "naïve",
        "größe",
        "Привет",
        "مرحبا",
        "你好",
        "世界",
        "こんにちは",
        "👩‍💻",
    ),
    *("x", "=", "12", "3.14", "1000000", "0x1F", "½", "_name", "()", "{", "}", ";", "//", "...", "?!", "    return"),
    *("\t", "\n", "\n\n", "\r\n", "  ", " ", " ", "\u00a0", "<|im_end|>", "<|im_start|>user", "https://a.b/c?d=1"),
)


def texts(count: int = TEXTS) -> list[str]:
    """Words of several scripts, digits, code, special tokens and runs of white space, in random order."""
    chance = random.Random(0)
    return ["".join(chance.choice(PIECES) for _ in range(chance.randrange(1, 40))) for _ in range(count)]


def digest(ids: Iterable[Sequence[int]]) -> str:
    """SHA-256 of the ids of many texts."""
    return hashlib.sha256("\n".join(" ".join(map(str, each)) for each in ids).encode()).hexdigest()


def peer_ids(binaries: Path, model: Path, text: str) -> list[int]:
    """As llama-tokenize prints them."""
    with TemporaryDirectory() as place:
        path = Path(place) / "text"
        path.write_bytes(text.encode())
        command: list[str | Path] = [
            binaries / "llama-tokenize",
            "-m",
            model,
            "-f",
            path,
            "--ids",
            "--no-bos",
            "--log-disable",
        ]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(number) for number in said.strip().strip("[]").split(",") if number.strip()]


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Print the peer's figures."""
    found = subprocess.run([ROOT / "scripts" / "published-model"], stdout=subprocess.PIPE, text=True, check=True)
    model = Path(found.stdout.strip())
    folder.mkdir(parents=True, exist_ok=True)
    binaries = build_peer(folder, None, ["llama-tokenize", "llama-perplexity"])
    print(f"ids of {TEXTS} texts: {digest(peer_ids(binaries, model, text) for text in texts())}")
    threads = len(os.sched_getaffinity(0))
    print(f"perplexity of {TEXT.name}: {of_peer(binaries, model, TEXT, WINDOWS, threads)}")
