"""`specbench`: is a bundle fast?"""

from __future__ import annotations

import click

from mxspec.evaluate.bench.model import bench_model
from mxspec.evaluate.bench.plots.draw import bench_plot
from mxspec.evaluate.bench.serve.measure import bench_serve
from mxspec.evaluate.bench.speculate.command import bench_speculate
from mxspec.runtime.cli.command import Group


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Measure models, speculation and servers: medians of interleaved repetitions, beside the machine's limit."""


for command in (bench_speculate, bench_model, bench_serve, bench_plot):
    main.add_command(command)


if __name__ == "__main__":
    main()
