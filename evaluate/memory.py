"""Memory of this process that no file backs: what a bundle costs beyond its mapped pages."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes() -> int:
    """Bytes of anonymous memory that are resident now (RssAnon of proc(5)); 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
