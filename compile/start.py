"""Entry points of `speccompile` and `specdraft`: from here on, Ctrl-C prints one line, so nothing slow comes before."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt


def main() -> None:
    """Run `speccompile`."""
    leave_on_interrupt()
    from mxspec.compile.commands.speccompile import main as speccompile

    speccompile()


def specdraft() -> None:
    """Run `specdraft`."""
    leave_on_interrupt()
    from mxspec.compile.commands.specdraft import main as specdraft

    specdraft()


if __name__ == "__main__":
    main()
