"""The ONNX Runtime custom-op library: where it lies, for `SessionOptions.register_custom_ops_library`."""

from importlib.resources import files
from pathlib import Path

from mxspec.formats.errors import MxspecError

__all__ = ["library_path"]


def library_path() -> Path:
    """Path of the built operator library. Raises MxspecError where the installation lacks it."""
    # Through the package's resources: in an editable install the library lies in site-packages, not beside this file.
    library = files("mxspec.runtime.ops").joinpath("libmxspec_ops.so")
    path = Path(str(library))
    if not path.is_file():
        raise MxspecError(f"operator library {path}: not there; install mxspec again, with a C++ compiler at hand")
    return path
