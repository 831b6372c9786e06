"""`specbench`: is a bundle fast?"""

from __future__ import annotations

import click

from mxspec.evaluate.bench.commands.batch import bench_batch
from mxspec.evaluate.bench.commands.columns import bench_columns
from mxspec.evaluate.bench.commands.model import bench_model
from mxspec.evaluate.bench.commands.plot import bench_plot
from mxspec.evaluate.bench.commands.serve import bench_serve
from mxspec.evaluate.bench.commands.speculate import bench_speculate
from mxspec.evaluate.bench.commands.sweep import bench_sweep
from mxspec.runtime.cli.command import Group


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Measure models, speculation and servers: medians of interleaved repetitions, beside the machine's limit."""


for command in (
    bench_model,
    bench_speculate,
    bench_columns,
    bench_batch,
    bench_serve,
    bench_sweep,
    bench_plot,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
