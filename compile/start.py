"""Entry point of `speccompile`: from here on, Ctrl-C prints one line, so nothing slow is imported before."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt


def main() -> None:
    """Run the command."""
    leave_on_interrupt()
    from mxspec.compile.commands.speccompile import main as speccompile

    speccompile()


if __name__ == "__main__":
    main()
