"""What each format of a published model loses: both programs over the same windows of one text.

The peer compares its formats with the file in 16 bits, and ours are compared with the fp16 model that their bundles
hold (`speccompile --with-baseline`). Both 16-bit models are the same weights, and the result has both perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import click

from bench.llama_cpp import perplexity
from bench.llama_cpp.build import PACKAGE, Peer, work_option
from bench.llama_cpp.files import F16, held_out_text, packed_again, published_options, require_both, text_option
from bench.llama_cpp.result import OURS, PEER
from bench.measurement import measurement
from mxspec.compile.checkpoint.gguf.container import read_container
from mxspec.evaluate.bench.prompts import read_tokens
from mxspec.evaluate.options import Progress
from mxspec.evaluate.result import Column, Result, Sheet, Value
from mxspec.formats.bundle import Bundle
from mxspec.runtime.models.weight_reads import matrix_bytes

TOOLS = ("llama-quantize", "llama-perplexity")
PEER_FORMATS = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")


class Row(Value):
    """One format of one program."""

    program: str
    format: str
    matrix_bytes: int
    weights: int
    ratio: float  # of perplexities, over the same program's 16-bit model
    divergence: float  # mean KL from it, in nats
    same_top_share: float

    @property
    def bits(self) -> float:
        """Bits a weight, of all matrices."""
        return 8 * self.matrix_bytes / self.weights


class AccuracyResult(Result):
    """Formats of one published model by both programs, on the second halves of windows of 512 tokens."""

    kind: ClassVar[str] = "llama-cpp-accuracy"

    peer: str  # its package
    model: str
    windows: int
    peer_perplexity: float  # of its 16-bit model
    perplexity: float  # of our 16-bit model
    rows: tuple[Row, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("program and format"),
            Column("MB", ".1f"),
            Column("bits a weight", ".2f"),
            Column("ratio", ".4f"),
            Column("KL (nats)", ".5f"),
            Column("same top token", ".1%"),
        )
        rows = tuple(
            (
                f"{row.program} {row.format}",
                row.matrix_bytes / 1e6,
                row.bits,
                row.ratio,
                row.divergence,
                row.same_top_share,
            )
            for row in sorted(self.rows, key=lambda row: row.matrix_bytes)
        )
        notes = (
            f"MB: all matrices. Ratio and KL divergence: from the same program's 16-bit model. Those two have "
            f"perplexities of {self.peer_perplexity:.3f} ({PEER}) and {self.perplexity:.3f} ({OURS}).",
        )
        return [Sheet(f"{self.model}, {self.windows * perplexity.SCORED:,} tokens", columns, rows, notes)]


@measurement
@partial(published_options, required=True)
@text_option
@click.option("--windows", type=click.IntRange(min=2), default=20, show_default=True, help="Windows for perplexity.")
@work_option
def main(
    gguf: Path, bundles: tuple[Path, ...], text: Path | None, windows: int, work: Path, progress: Progress
) -> AccuracyResult:
    """Compare formats of a published model with its 16-bit form, in perplexity and KL divergence, by both programs."""
    require_both(gguf, bundles)
    peer = Peer.open(work, *TOOLS)
    text = text or held_out_text(work)
    whole = packed_again(work, peer.binaries, gguf, F16)
    kept = whole.with_suffix(".logits")
    try:
        of_peer = perplexity.of_peer(peer.binaries, whole, text, windows, peer.threads, keep=kept)
        rows = []
        for name in PEER_FORMATS:
            path = packed_again(work, peer.binaries, gguf, name)
            distance = perplexity.distance_of_peer(peer.binaries, path, text, windows, peer.threads, kept)
            rows.append(_row(PEER, name, *_peer_size(path), distance))
            progress(f"{PEER} {name}: KL {distance.divergence:.5f}")
    finally:
        kept.unlink(missing_ok=True)
    for path in bundles:
        bundle = Bundle.open(path)
        baseline, target = perplexity.model_of(bundle, "baseline"), perplexity.model_of(bundle, "target")
        own, distance = perplexity.distance_of_model(baseline, target, read_tokens(path, text, 1), windows)
        size, whole_size = (matrix_bytes(bundle.manifest.models[name]) for name in ("target", "baseline"))
        rows.append(_row(OURS, path.stem, size, whole_size // 2, distance))
        progress(f"{OURS} {path.stem}: KL {distance.divergence:.5f}")
    return AccuracyResult(
        peer=PACKAGE, model=gguf.name, windows=windows, peer_perplexity=of_peer, perplexity=own, rows=tuple(rows)
    )


def _row(program: str, name: str, size: int, weights: int, distance: perplexity.Distance) -> Row:
    return Row(
        program=program,
        format=name,
        matrix_bytes=size,
        weights=weights,
        ratio=distance.ratio,
        divergence=distance.divergence,
        same_top_share=distance.same_top,
    )


def _peer_size(path: Path) -> tuple[int, int]:
    """Bytes and weights of a file's matrices."""
    matrices = [tensor for tensor in read_container(path).tensors.values() if len(tensor.shape) > 1]
    return sum(tensor.bytes for tensor in matrices), sum(math.prod(tensor.shape) for tensor in matrices)
