"""Start `specserve` and `specbatch`: Ctrl-C prints one line from here on, so slow imports come later."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt


def specserve() -> None:
    """Run the command `specserve`."""
    leave_on_interrupt()
    from mxspec.serve.commands.specserve import specserve as command

    command()


def specbatch() -> None:
    """Run the command `specbatch`."""
    leave_on_interrupt()
    from mxspec.serve.commands.specbatch import specbatch as command

    command()


if __name__ == "__main__":
    specserve()
