"""Entry points of `speccheck`, `specbench` and `mxspec-eval`: from here on, Ctrl-C prints one line."""

from __future__ import annotations

from mxspec.runtime.cli.interrupts import leave_on_interrupt, raising_interrupts


def speccheck() -> None:
    """Run `speccheck`; remove its temporary files when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.speccheck import main

    with raising_interrupts():
        main()


def specbench() -> None:
    """Run `specbench`; remove its temporary files when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.bench.cli import main

    with raising_interrupts():
        main()


def mxspec_eval() -> None:
    """Run `mxspec-eval`; remove its temporary files when it is interrupted."""
    leave_on_interrupt()
    from mxspec.evaluate.tasks.lm_eval_command import main

    with raising_interrupts():
        main()
