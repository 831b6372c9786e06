"""mxspec: compile pairs of language models to MXFP6, run them on ONNX Runtime with lossless speculative decoding."""

from importlib.metadata import version

__version__ = version("mxspec")
