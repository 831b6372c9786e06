"""mBART has the positions of BART."""

from mxspec.compile.trace.families.bart import patch

__all__ = ["patch"]
