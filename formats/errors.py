"""The exception tree: every mistake that is the user's or the file's, never ours.

A command prints such an error as one line and exits with code 1; anything else is a bug and gets a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class MxspecError(Exception):
    """Base of all expected errors. The message is one line: what, where, got, expected, what to do."""


class BundleError(MxspecError):
    """A bundle that cannot be trusted: missing, cut short, tampered with, or of another schema version."""


class RecipeError(MxspecError):
    """A recipe that says something unknown, wrong or contradictory."""


class CheckpointError(MxspecError):
    """A checkpoint whose tensors or configuration cannot be compiled."""


class PairError(MxspecError):
    """A target and a draft that do not speak the same token ids."""


class UnsupportedModelError(MxspecError):
    """An architecture, or a feature of one, that the exporter does not carry."""


class GenerationError(MxspecError):
    """A request that the bundle cannot serve: an empty or too long prompt, K above k_max, bad sampling settings.

    `field` is the field of the request that is wrong, or the option or part of the engine; empty if none is.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)  # both, so that the error can be pickled
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


class UnavailableError(GenerationError):
    """A request that cannot be answered now, for a reason that is not its own; it may be sent again."""


class ContextLengthError(GenerationError):
    """A prompt that is longer than the context."""


class CheckFailed(MxspecError):
    """A check ran to its end and its verdict is no: exit code 2."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known word, or an empty string."""
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around imports of packages that an extra of mxspec brings and `what` needs; raises MxspecError without them."""
    try:
        yield
    except ModuleNotFoundError as missing:
        package = str(missing.name).partition(".")[0]
        raise MxspecError(f"{what} needs {package}: pip install 'mxspec[{extra}]'") from None
