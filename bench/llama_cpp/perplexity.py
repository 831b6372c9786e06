"""Perplexity and KL divergence of both programs over the same windows of a text, as the peer's own tool cuts them.

llama-perplexity cuts a text into windows of WINDOW tokens without overlap, and scores the last SCORED tokens of each
window, its second half. No window begins with a BOS, because the demo's tokenizer does not add one.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mxspec.evaluate.accuracy.models import ScoredModel, bundle_rows, score_window
from mxspec.evaluate.accuracy.statistics import Scores
from mxspec.evaluate.accuracy.windows import Window
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session

WINDOW = 512
SCORED = WINDOW - WINDOW // 2 - 1  # the row in the middle predicts the first of them, the last row nothing
CHUNK = 128  # tokens a call


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a model's distributions are from those of the 16-bit model, over the same tokens."""

    ratio: float  # of perplexities
    divergence: float  # mean KL, in nats
    same_top: float  # share of tokens


def of_peer(binaries: Path, model: Path, text: Path, windows: int, threads: int, keep: Path | None = None) -> float:
    """The perplexity that llama-perplexity prints; `keep` is a file for the logits. Raises MxspecError."""
    keeping = [] if keep is None else ["--kl-divergence-base", str(keep)]
    return _number(_ask(binaries, model, text, windows, threads, keeping), r"Final estimate: PPL = ([\d.]+)")


def distance_of_peer(binaries: Path, model: Path, text: Path, windows: int, threads: int, kept: Path) -> Distance:
    """The distance from the model whose logits were kept. Raises MxspecError."""
    said = _ask(binaries, model, text, windows, threads, ["--kl-divergence-base", str(kept), "--kl-divergence"])
    return Distance(
        _number(said, r"Mean PPL\(Q\)/PPL\(base\)\s*:\s*([\d.]+)"),
        _number(said, r"Mean\s+KLD:\s*(-?[\d.]+)"),
        _number(said, r"Same top p:\s*([\d.]+)") / 100,
    )


def _ask(binaries: Path, model: Path, text: Path, windows: int, threads: int, options: Sequence[str]) -> str:
    asked = ["-f", str(text), "-c", str(WINDOW), "--chunks", str(windows), "-t", str(threads), *options]
    ran = subprocess.run([binaries / "llama-perplexity", "-m", model, *asked], capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    if ran.returncode:
        last = (said.strip().splitlines() or ["no output"])[-1]
        raise MxspecError(f"llama-perplexity ended with {ran.returncode}: {last}")
    return said


def _number(said: str, pattern: str) -> float:
    found = re.search(pattern, said)
    if found is None:
        raise MxspecError(f"llama-perplexity printed nothing like {pattern!r}")
    return float(found[1])


def of_bundle(path: Path, token_ids: Sequence[int], windows: int, threads: int) -> float:
    """The perplexity of a bundle's target; `token_ids` are those of the whole text."""
    ops.set_threads(threads)
    return of_model(model_of(Bundle.open(path), "target"), token_ids, windows)


def model_of(bundle: Bundle, name: ModelName) -> ScoredModel:
    """A model of a bundle in a session of its own."""
    return partial(bundle_rows, Reader(Session.of(bundle, name, 1)))


def of_model(model: ScoredModel, token_ids: Sequence[int], windows: int) -> float:
    """The perplexity of any model that gives logits. Raises MxspecError if the text is too short."""
    return _perplexity(*_scores([model], token_ids, windows))


def distance_of_model(
    baseline: ScoredModel, model: ScoredModel, token_ids: Sequence[int], windows: int
) -> tuple[float, Distance]:
    """The perplexity of the baseline, and the distance of a model from it. Raises MxspecError."""
    base, other = _scores([baseline, model], token_ids, windows)
    whole = _perplexity(base)
    return whole, Distance(_perplexity(other) / whole, float(other.divergence.mean()), float(other.same_top.mean()))


def _scores(models: Sequence[ScoredModel], token_ids: Sequence[int], windows: int) -> list[Scores]:
    if len(token_ids) < windows * WINDOW:
        raise MxspecError(f"text: got {len(token_ids)} tokens, expected {windows * WINDOW} for perplexity")
    cut = [tuple(token_ids[begin : begin + WINDOW]) for begin in range(0, windows * WINDOW, WINDOW)]
    scored = [score_window(models, Window(tokens, SCORED, 0, 0), CHUNK) for tokens in cut]
    return [Scores.joined(of_model) for of_model in zip(*scored, strict=True)]


def _perplexity(scores: Scores) -> float:
    return math.exp(float(scores.loss.mean()))
