"""`specbench`: is a bundle fast?"""

from __future__ import annotations

import click

from mxspec.evaluate.bench.commands.batch import bench_batch
from mxspec.evaluate.bench.commands.caches import bench_caches
from mxspec.evaluate.bench.commands.columns import bench_columns
from mxspec.evaluate.bench.commands.compare import bench_compare
from mxspec.evaluate.bench.commands.floor import bench_floor
from mxspec.evaluate.bench.commands.grow import bench_grow
from mxspec.evaluate.bench.commands.head import bench_head
from mxspec.evaluate.bench.commands.model import bench_model
from mxspec.evaluate.bench.commands.ops import bench_ops
from mxspec.evaluate.bench.commands.plot import bench_plot
from mxspec.evaluate.bench.commands.profile import bench_profile
from mxspec.evaluate.bench.commands.serve import bench_serve
from mxspec.evaluate.bench.commands.shapes import bench_shapes
from mxspec.evaluate.bench.commands.speculate import bench_speculate
from mxspec.evaluate.bench.commands.sweep import bench_sweep
from mxspec.runtime.cli.command import Group


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Measure kernels, models and speculation: medians of interleaved repetitions, beside the machine's limit."""


for command in (
    bench_ops,
    bench_model,
    bench_profile,
    bench_head,
    bench_floor,
    bench_speculate,
    bench_caches,
    bench_columns,
    bench_batch,
    bench_serve,
    bench_sweep,
    bench_plot,
    bench_compare,
    bench_grow,
    bench_shapes,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
