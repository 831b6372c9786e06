"""The steps of `speccheck accuracy` in order, from a bundle and texts to a result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mxspec.evaluate.accuracy.documents import Document
from mxspec.evaluate.accuracy.judge import bar_of, block_starts, figures_of, judge, judge_referee, perplexity
from mxspec.evaluate.accuracy.models import ScoredModel, bundle_rows, open_referee, score_window
from mxspec.evaluate.accuracy.ranks import SHOWN, advise, rank_tensors
from mxspec.evaluate.accuracy.repack import RepackSettings, matrix_bytes, repack
from mxspec.evaluate.accuracy.result import Accuracy
from mxspec.evaluate.accuracy.statistics import Scores
from mxspec.evaluate.accuracy.windows import (
    Cut,
    Window,
    choose_cut,
    cut_text,
    encode_text,
    leading_tokens,
    pair_windows,
)
from mxspec.evaluate.significance import scipy_stats
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.text.tokenizer import check_ids, load_tokenizer


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """The options: None is the default of choose_cut() and bar_of(); `referee` is a recipe of the checkpoint."""

    max_tokens: int | None = None
    window: int | None = None
    stride: int | None = None
    max_ratio: float | None = None
    formats: tuple[RepackSettings, ...] = ()
    referee: Recipe | None = None
    tensors: int | None = None


Progress = Callable[[int, int, float], object]
"""Called with the tokens that are scored, those to score, and the mean difference of losses so far."""


def measure_accuracy(
    bundle: Bundle, documents: Sequence[Document], skipped: int, options: AccuracyOptions, progress: Progress
) -> Accuracy:
    """Score the documents with the target, the baseline, other formats and the referee. Raises MxspecError."""
    require_baseline(bundle)
    scipy_stats()
    target = bundle.manifest.models["target"]
    tokenizer = load_tokenizer(bundle.tokenizer_path)
    cut, windows = cut_documents(bundle, tokenizer, documents, options)
    with ExitStack() as files:
        models, chunk = open_models(bundle, options, cut.length, files)
        baseline, of_target, *others = score_all(models, windows, chunk, progress)

    counts = np.bincount([window.document for window in windows], [window.scored for window in windows])
    starts = block_starts(int(count) for count in counts)
    size = sum(tensor.bytes for tensor in target.tensors if tensor.format in WEIGHT_FORMATS)
    figures = figures_of(of_target, baseline, starts, target.format, target.activations, size)
    beside = [
        figures_of(scores, baseline, starts, wanted.weight_format, wanted.activations, matrix_bytes(bundle, wanted))
        for wanted, scores in zip(options.formats, others, strict=False)
    ]
    referee = (
        None if options.referee is None else judge_referee(options.referee.target.checkpoint, others[-1], baseline)
    )
    max_ratio = bar_of(target, options.max_ratio)
    verdict, reasons = judge(figures, baseline, len(starts), max_ratio, referee)
    beyond = figures.ratio > max_ratio
    worst = rank_tensors(target, (SHOWN if beyond else 0) if options.tensors is None else options.tensors)
    return Accuracy(
        **figures.model_dump(),
        bundle=bundle.manifest.name,
        documents=len(documents),
        skipped_files=skipped,
        tokens=len(baseline.loss),
        window=cut.length,
        stride=cut.stride,
        windows_begin_with=tuple(str(tokenizer.id_to_token(token)) for token in cut.lead),
        baseline_perplexity=perplexity(baseline.loss),
        baseline_not_finite_tokens=int((~baseline.finite).sum()),
        blocks=len(starts),
        predicted_ratio=None if target.budget is None else target.budget.predicted_ratio,
        max_ratio=max_ratio,
        worst_at=worst_place(of_target, windows, documents),
        beside=tuple(beside),
        referee=referee,
        origins=tuple(sorted({origin for tensor in target.tensors for origin in tensor.origins})),
        tensors=worst,
        advice=advise(target, worst) if worst or beyond else (),
        verdict=verdict,
        reasons=reasons,
        passed=verdict == "passed",
    )


def require_baseline(bundle: Bundle) -> None:
    """Raise BundleError unless the bundle has the fp16 target to compare with."""
    if "baseline" not in bundle.manifest.models:
        raise BundleError(
            f"{bundle.path}: got no baseline model, expected the fp16 target beside the packed one: "
            "compile it with speccompile --with-baseline"
        )


def cut_documents(
    bundle: Bundle, tokenizer: Tokenizer, documents: Sequence[Document], options: AccuracyOptions
) -> tuple[Cut, list[Window]]:
    """How documents are cut, and their windows. Raises MxspecError if there is nothing to score."""
    entry, target = bundle.manifest.tokenizer, bundle.manifest.models["target"]
    _require_sources(bundle, documents, options)
    if target.encoder is not None:
        context = target.context_length
        windows = pair_windows(documents, tokenizer, entry, target.encoder, context, options.max_tokens)
        return Cut(entry.decoder_start, context, context), windows
    lead = leading_tokens(tokenizer, entry.bos_token_id)
    cut = choose_cut(lead, target.context_length, options.window, options.stride)
    windows = []
    left = options.max_tokens
    for number, document in enumerate(documents):
        tokens = check_ids(encode_text(tokenizer, document.text, lead), entry.vocab_size)[:left]
        left = None if left is None else left - len(tokens)
        windows += cut_text(tokens, cut, number)
    if not windows:
        raise MxspecError("--text: got fewer than 2 tokens, expected at least 2: give a longer text")
    return cut, windows


def _require_sources(bundle: Bundle, documents: Sequence[Document], options: AccuracyOptions) -> None:
    """Raise MxspecError unless exactly the models with encoders get sources, and for options without effect."""
    encoder, sources = bundle.manifest.models["target"].encoder, [document.source is not None for document in documents]
    if encoder is None and any(sources):
        raise MxspecError(f"--source: given, but no model of bundle {bundle.path} has an encoder to read it")
    if encoder is None:
        return
    if not all(sources):
        raise MxspecError("--source: got none, expected the files whose lines the encoder reads, one for each --text")
    for name, value in (("--window", options.window), ("--stride", options.stride), ("--referee", options.referee)):
        if value is not None:
            raise MxspecError(f"{name}: is not supported for models with encoders")


def open_models(
    bundle: Bundle, options: AccuracyOptions, longest: int, files: ExitStack
) -> tuple[list[ScoredModel], int]:
    """The baseline, the target, other formats and the referee, open until `files` closes; and the tokens of a call."""
    entries, vocab = bundle.manifest.models, bundle.manifest.tokenizer.vocab_size
    referee, first_position = None, 0
    if options.referee is not None:
        referee, first_position = open_referee(options.referee, entries["baseline"], vocab, longest)
    places: list[tuple[Path, ModelEntry]] = [(bundle.path, entries["baseline"]), (bundle.path, entries["target"])]
    for wanted in options.formats:
        folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="mxspec-accuracy-")))
        places.append((folder, repack(bundle, wanted, folder)))
    sessions = [Session(folder, entry, vocab, 1) for folder, entry in places]
    for session in sessions:
        session.first_position = first_position
    models: list[ScoredModel] = [partial(bundle_rows, Reader(session)) for session in sessions]
    return models + ([] if referee is None else [referee]), min(session.chunk for session in sessions)


def score_all(models: Sequence[ScoredModel], windows: Sequence[Window], chunk: int, progress: Progress) -> list[Scores]:
    """The scores of each model over all windows."""
    total, done, difference = sum(window.scored for window in windows), 0, 0.0
    parts = []
    progress(0, total, 0.0)
    for window in windows:
        parts.append(score_window(models, window, chunk))
        baseline, target, *_ = parts[-1]
        done += window.scored
        difference += float((target.loss - baseline.loss).sum())
        progress(done, total, difference / done)
    return [Scores.joined(of_model) for of_model in zip(*parts, strict=True)]


def worst_place(scores: Scores, windows: Sequence[Window], documents: Sequence[Document]) -> str:
    """`NAME, token 123`: where the divergence is largest, or not finite."""
    worst = int(scores.divergence.argmax())
    for window in windows:
        if worst < window.scored:
            return f"{documents[window.document].name}, token {window.first + worst:,}"
        worst -= window.scored
    raise AssertionError("no window has that token")
