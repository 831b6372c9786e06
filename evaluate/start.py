"""`speccheck`, `specbench` and `mxspec-eval`, their first moments: Ctrl-C is one line from here on."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt, raising_interrupts


def speccheck() -> None:
    """Run `speccheck`; what it leaves on disk is removed when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.speccheck import main

    with raising_interrupts():
        main()


def specbench() -> None:
    """Run `specbench`; what it leaves on disk is removed when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.bench.cli import main

    with raising_interrupts():
        main()


def mxspec_eval() -> None:
    """Run `mxspec-eval`; what it leaves on disk is removed when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.tasks.lm_eval_command import main

    with raising_interrupts():
        main()
