"""`specserve` and `specbatch`, their first moments: Ctrl-C is one line from here on."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt


def specserve() -> None:
    """Run the command."""
    leave_on_interrupt()
    from mxspec.serve.specserve import specserve as command

    command()


def specbatch() -> None:
    """Likewise."""
    leave_on_interrupt()
    from mxspec.serve.specbatch import specbatch as command

    command()


if __name__ == "__main__":
    specserve()
