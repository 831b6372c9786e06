"""Anonymous memory of a process: what a bundle costs beyond its mapped pages."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(process: int | None = None) -> int:
    """Bytes of anonymous memory that a process, by default this one, has resident now (RssAnon of proc(5)).

    0 if the system does not tell, or the process has ended.
    """
    try:
        lines = Path("/proc", str(process or "self"), "status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
