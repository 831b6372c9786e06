"""Perplexity of both programs over the same windows of the same text, as the peer's own tool cuts them.

llama-perplexity cuts a text into windows of WINDOW tokens without overlap, and scores the last SCORED tokens of each
window, its second half. No window begins with a BOS, because the demo's tokenizer does not add one.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxspec.evaluate.accuracy.models import BundleModel, Model
from mxspec.evaluate.accuracy.score import score_window
from mxspec.evaluate.accuracy.windows import Window
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime import ops
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session

WINDOW = 512
SCORED = WINDOW - WINDOW // 2 - 1  # the row in the middle predicts the first of them, the last row nothing
CHUNK = 128  # tokens a call


def of_peer(binaries: Path, model: Path, text: Path, windows: int, threads: int) -> float:
    """The perplexity that llama-perplexity prints. Raises MxspecError if it prints none."""
    asked = ["-f", str(text), "-c", str(WINDOW), "--chunks", str(windows), "-t", str(threads)]
    ran = subprocess.run([binaries / "llama-perplexity", "-m", model, *asked], capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    found = re.search(r"Final estimate: PPL = ([\d.]+)", said)
    if ran.returncode or found is None:
        last = (said.strip().splitlines() or ["nothing said"])[-1]
        raise MxspecError(f"llama-perplexity ended with {ran.returncode}: {last}")
    return float(found[1])


def of_bundle(path: Path, token_ids: Sequence[int], windows: int, threads: int) -> float:
    """The perplexity of a bundle's target; `token_ids` are those of the whole text."""
    ops.set_threads(threads)
    return of_model(BundleModel(Reader(Session.of(Bundle.open(path), "target", 1))), token_ids, windows)


def of_model(model: Model, token_ids: Sequence[int], windows: int) -> float:
    """The perplexity of any model that gives logits. Raises MxspecError if the text is too short."""
    if len(token_ids) < windows * WINDOW:
        raise MxspecError(f"text: got {len(token_ids)} tokens, expected {windows * WINDOW} for perplexity")
    cut = [tuple(token_ids[begin : begin + WINDOW]) for begin in range(0, windows * WINDOW, WINDOW)]
    losses = [score_window([model], Window(tokens, SCORED, 0, 0), CHUNK)[0].loss for tokens in cut]
    return math.exp(float(np.concatenate(losses).mean()))
