"""Perplexity of both programs over the same windows of the same text, as the peer's own tool cuts them.

llama-perplexity cuts a text into windows of WINDOW tokens without overlap, and of each judges what comes after its
first half: rows WINDOW / 2 to WINDOW - 2. No window begins with a BOS, which the demo's tokenizer does not add.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxspec.evaluate.accuracy import Scorer, log_softmax
from mxspec.formats.errors import MxspecError

WINDOW = 512
FIRST = WINDOW // 2  # the first row that is judged


def of_peer(binaries: Path, model: Path, text: Path, windows: int, threads: int) -> float:
    """As llama-perplexity says it. Raises MxspecError where it says none."""
    asked = ["-f", str(text), "-c", str(WINDOW), "--chunks", str(windows), "-t", str(threads)]
    ran = subprocess.run([binaries / "llama-perplexity", "-m", model, *asked], capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    found = re.search(r"Final estimate: PPL = ([\d.]+)", said)
    if ran.returncode or found is None:
        raise MxspecError(
            f"llama-perplexity ended with {ran.returncode}: {(said.strip().splitlines() or ['nothing'])[-1]}"
        )
    return float(found[1])


def of_ours(engine: Scorer, token_ids: Sequence[int], windows: int) -> float:
    """The same of an engine; `token_ids` are those of the whole text."""
    losses = [
        window_losses(engine, token_ids[start : start + WINDOW])
        for start in range(0, windows * WINDOW, WINDOW)
        if start + WINDOW <= len(token_ids)
    ]
    return math.exp(float(np.concatenate(losses).mean()))


def window_losses(engine: Scorer, window: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """float64[WINDOW - 1 - FIRST] nats of each token after the first half."""
    logs = log_softmax(np.concatenate(list(engine.score(window)))[FIRST : WINDOW - 1])
    losses: np.ndarray[tuple[int], np.dtype[np.float64]] = -logs[np.arange(len(logs)), window[FIRST + 1 :]]
    return losses
