"""mT5 is T5 in other classes."""

from mxspec.compile.trace.families.t5 import patch

__all__ = ["patch"]
