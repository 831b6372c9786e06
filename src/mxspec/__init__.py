"""mxspec: compile pairs of language models to MXFP6, run them on ONNX Runtime with lossless speculative decoding."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxspec.formats.errors import BundleError, ContextLengthError, GenerationError, MxspecError, UnavailableError
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.events import Finished, Round, Token
    from mxspec.runtime.grammars.grammar import Grammar
    from mxspec.runtime.handle import Answer, Handle
    from mxspec.runtime.request import Request
    from mxspec.runtime.scheduling.worker import QueueFullError

    __version__: str

__all__ = [
    "Answer",
    "BundleError",
    "ContextLengthError",
    "Engine",
    "Finished",
    "GenerationError",
    "Grammar",
    "Handle",
    "MxspecError",
    "QueueFullError",
    "Request",
    "Round",
    "Token",
    "UnavailableError",
    "__version__",
]

_HOMES = {
    "Answer": "mxspec.runtime.handle",
    "BundleError": "mxspec.formats.errors",
    "ContextLengthError": "mxspec.formats.errors",
    "Engine": "mxspec.runtime.engine",
    "Finished": "mxspec.runtime.events",
    "GenerationError": "mxspec.formats.errors",
    "Grammar": "mxspec.runtime.grammars.grammar",
    "Handle": "mxspec.runtime.handle",
    "MxspecError": "mxspec.formats.errors",
    "QueueFullError": "mxspec.runtime.scheduling.worker",
    "Request": "mxspec.runtime.request",
    "Round": "mxspec.runtime.events",
    "Token": "mxspec.runtime.events",
    "UnavailableError": "mxspec.formats.errors",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """`mxspec.Engine` and its like, imported when first asked for: the compiler does without the runtime."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("mxspec")
    raise AttributeError(f"module 'mxspec' has no attribute {name!r}")
