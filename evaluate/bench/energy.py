"""Energy that the processors used, if the machine tells: Running Average Power Limit, by Linux's powercap."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
MICROJOULES = 1e6


class EnergyMeter:
    """Joules of all processor packages since the meter was made; None if they cannot be read."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._packages = sorted(powercap.glob("intel-rapl:[0-9]"))  # also AMD's; parts of a package are named a:b
        self._began = self._read()

    def joules(self) -> float | None:
        now = self._read()
        if now is None or self._began is None:
            return None
        return (
            sum(self._between(*counts) for counts in zip(self._packages, self._began, now, strict=True)) / MICROJOULES
        )

    def _read(self) -> list[int] | None:
        with suppress(OSError, ValueError):
            return [int((package / "energy_uj").read_text()) for package in self._packages] or None
        return None

    @staticmethod
    def _between(package: Path, before: int, after: int) -> int:
        """The counter's increase; a counter starts again at 0 after its range."""
        return (
            after - before if after >= before else after - before + int((package / "max_energy_range_uj").read_text())
        )
