"""The processor that this runs on, by name."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The system's name of its first core, or Python's where the system has no name."""
    try:
        with CPUINFO.open() as lines:  # of every core: no more is read than the first name
            for line in lines:
                if "model name" in line:
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
