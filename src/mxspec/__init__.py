"""mxspec: compile pairs of language models to MXFP6, run them on ONNX Runtime with lossless speculative decoding."""

from importlib.metadata import version

from mxspec.runtime.engine import Engine

__all__ = ["Engine", "__version__"]

__version__ = version("mxspec")
