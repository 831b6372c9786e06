"""mxspec: compile pairs of language models to MXFP6, run them on ONNX Runtime with lossless speculative decoding."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxspec.formats.errors import MxspecError
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.events import Finished, Round, Token
    from mxspec.runtime.handle import Answer, Handle
    from mxspec.runtime.request import Request
    from mxspec.runtime.sampling.grammar import Grammar

    __version__: str

__all__ = [
    "Answer",
    "Engine",
    "Finished",
    "Grammar",
    "Handle",
    "MxspecError",
    "Request",
    "Round",
    "Token",
    "__version__",
]

_HOMES = {
    "Answer": "mxspec.runtime.handle",
    "Engine": "mxspec.runtime.engine",
    "Finished": "mxspec.runtime.events",
    "Grammar": "mxspec.runtime.sampling.grammar",
    "Handle": "mxspec.runtime.handle",
    "MxspecError": "mxspec.formats.errors",
    "Request": "mxspec.runtime.request",
    "Round": "mxspec.runtime.events",
    "Token": "mxspec.runtime.events",
}


def __getattr__(name: str) -> Any:
    """`mxspec.Engine` and its like, imported when first asked for: the compiler does without the runtime."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("mxspec")
    raise AttributeError(f"module 'mxspec' has no attribute {name!r}")
