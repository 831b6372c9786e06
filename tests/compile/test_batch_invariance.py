"""Batch invariance: whatever texts share a call, in whatever slots, a row of a graph has the bits of its text alone.

Run as a program on folders of graphs, this file tries them with the instruction set that MXSPEC_ISA names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mxspec.compile.check.readings import forget
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime import ops
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

SLOTS, TEXTS = 6, 4


def try_batches(session: Session, seed: int) -> None:
    """Prompt chunks, single tokens and K+1 rows of some texts in any order, rolled back at times; AssertionError."""
    random = np.random.default_rng(seed)
    texts = [random.integers(3, 118, random.integers(50, session.capacity + 1)).tolist() for _ in range(TEXTS)]
    slots = random.permutation(SLOTS)[:TEXTS].tolist()
    forget(session)
    alone = [session.run([Part(0, 0, text, len(text))]).copy() for text in texts]
    assert all(np.isfinite(logits).all() for logits in alone)
    forget(session)
    done = [0] * TEXTS
    while any(d < len(text) for d, text in zip(done, texts, strict=True)):
        parts, members = [], []
        for member in random.permutation(TEXTS)[: random.integers(1, TEXTS + 1)].tolist():
            count = int(random.choice([1, random.integers(2, 10), random.integers(20, 40)]))
            tokens = texts[member][done[member] : done[member] + count]
            if tokens:
                rows = len(tokens) if not parts else int(random.choice([len(tokens), 1, 0]))
                parts.append(Part(slots[member], done[member], tokens, rows))
                members.append(member)
        if not parts:
            continue
        logits = np.split(session.run(parts), np.cumsum([part.rows for part in parts])[:-1])
        for member, part, got in zip(members, parts, logits, strict=True):
            end = part.past + len(part.tokens)
            assert got.tobytes() == alone[member][end - part.rows : end].tobytes(), (member, parts)
            left = len(texts[member]) - end
            done[member] = end - (int(random.integers(0, min(3, len(part.tokens)))) if left else 0)


@pytest.fixture(scope="module")
def folders(written_graph: Callable[..., tuple[Path, ModelEntry]]) -> list[Path]:
    """Of graphs of every architecture, and of some with packed weights and half-precision caches."""
    from tests.compile.conftest import TINY  # late: as a program, this file finds no package of tests

    kinds = [(name, "fp16_tiles", "float32") for name in TINY]
    kinds += [("llama", "mxfp6_e3m2", "float32"), ("qwen3", "mxfp6_e3m2", "float16"), ("gpt2", "fp16_tiles", "float16")]
    return [written_graph(*kind)[0] for kind in kinds]


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "avx512vnni", "neon"])
def test_rows_have_the_bits_of_their_text_alone(isa: str, folders: list[Path]) -> None:
    command = [sys.executable, __file__, *map(str, folders)]
    result = subprocess.run(command, env=os.environ | {"MXSPEC_ISA": isa}, capture_output=True, text=True)
    if "does not have" in result.stderr:
        pytest.skip(f"this machine does not have {isa}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [isa, str(len(folders))]


if __name__ == "__main__":
    ops.set_threads(3)
    for seed, folder in enumerate(map(Path, sys.argv[1:])):
        entry = ModelEntry.model_validate_json((folder / "entry.json").read_text())
        session = Session(folder, entry, entry.vocab_size, SLOTS)
        try:
            try_batches(session, seed)
        except AssertionError as error:
            raise SystemExit(f"{folder.name}: {error}") from error
    print(ops.instruction_set(), len(sys.argv) - 1)
