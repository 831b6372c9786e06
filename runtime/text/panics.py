"""Errors of the tokenizers library as errors of ours: it raises plain Exception; its panics are BaseExceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mxspec.formats.errors import BundleError, MxspecError


@contextmanager
def guarded(what: str, error: type[MxspecError] = BundleError) -> Iterator[None]:
    """Raise `error` for what the library raises, and BundleError for its panics: only a broken file makes it panic."""
    try:
        yield
    except Exception as problem:
        raise error(f"{what}: {_line(problem)}") from None
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":  # pyo3's; it can be imported from nowhere
            raise
        raise BundleError(f"{what}: {_line(problem)}; the tokenizer.json is damaged") from None


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())
