"""`speccheck`: is a bundle right?"""

from __future__ import annotations

import click

from mxspec.evaluate.accuracy.command import accuracy
from mxspec.evaluate.logits import logits
from mxspec.evaluate.lossless.command import lossless
from mxspec.evaluate.tasks.command import tasks
from mxspec.runtime.cli.command import Group


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Check that a bundle is right."""


for command in (lossless, accuracy, logits, tasks):
    main.add_command(command)


if __name__ == "__main__":
    main()
