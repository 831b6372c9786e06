"""mxspec: compile pairs of language models to MXFP6, run them on ONNX Runtime with lossless speculative decoding."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine

__all__ = ["Engine", "__version__"]

__version__ = version("mxspec")


def __getattr__(name: str) -> Any:
    """`mxspec.Engine`, imported when first asked for: the compiler and the codec do without the runtime."""
    if name == "Engine":
        from mxspec.runtime.engine import Engine

        return Engine
    raise AttributeError(f"module 'mxspec' has no attribute {name!r}")
