"""Records of every kind: the results of mxspec's commands, and those of the laboratory."""

from __future__ import annotations

from pathlib import Path

from bench.calls.caches import CachesResult
from bench.calls.head import HeadResult
from bench.calls.profile_result import ProfileResult
from bench.compare.result import CompareResult
from bench.documents.old_batch import BatchResult
from bench.documents.old_columns import ColumnsResult
from bench.documents.old_speculate import SpeculateResult
from bench.kernels.floor import FloorResult
from bench.kernels.ops_result import OpsResult
from bench.llama_cpp.accuracy import AccuracyResult
from bench.llama_cpp.result import ShapeResult, SpeculativeResult
from bench.llama_cpp.serving import ServingResult
from bench.results import (
    CodecResult,
    CompileResult,
    EditsResult,
    ExactResult,
    LessMemoryResult,
    LoadResult,
    LongTextsResult,
    OtherTokensResult,
    SoakResult,
)
from bench.servers.result import GrammarAttackResult
from mxspec.evaluate.accuracy.result import Accuracy
from mxspec.evaluate.bench.model import ModelResult
from mxspec.evaluate.bench.serve.result import ServeResult
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.evaluate.record import Record, read_record
from mxspec.evaluate.result import Result

KINDS: tuple[type[Result], ...] = (
    *(Accuracy, BatchResult, ColumnsResult, ModelResult, ServeResult, SpeculateResult, SpeculationResult),
    *(CachesResult, HeadResult, LessMemoryResult, ProfileResult),
    *(CodecResult, FloorResult, OpsResult),
    *(CompileResult, EditsResult, ExactResult, LongTextsResult, OtherTokensResult, SoakResult),
    *(GrammarAttackResult, LoadResult),
    *(AccuracyResult, ServingResult, ShapeResult, SpeculativeResult),
    CompareResult,
)


def read(path: Path) -> Record:
    """Read a record of any kind. Raises MxspecError for another file."""
    return read_record(path, KINDS)
