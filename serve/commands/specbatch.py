"""The command `specbatch`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.option_groups import GroupedCommand, option
from mxspec.runtime.cli.request_options import request_options
from mxspec.runtime.cli.settings import Defaults, request_settings

FILE = click.Path(path_type=Path)
REPLICAS, PROMPT, OUTPUT = "Replicas", "Prompt", "Output"


@click.command(cls=GroupedCommand)
@click.version_option(package_name="mxspec")
@click.argument("bundle", type=FILE)
@click.argument("input", type=FILE)
@click.argument("output", type=FILE)
@option(
    REPLICAS,
    "--address",
    metavar="HOST:PORT|auto",
    help="Address of the head of a Ray cluster.  [default: this machine]",
)
@option(
    REPLICAS, "--replicas", type=click.IntRange(1), help="Number of replicas of the engine.  [default: as many as fit]"
)
@option(
    REPLICAS,
    "--cpus-per-replica",
    type=click.IntRange(1),
    help="Threads of each replica.  [default: all cores of a node]",
)
@option(
    REPLICAS,
    "--slots",
    type=click.IntRange(1),
    default=8,
    help="Number of texts that a replica writes at the same time.  [default: 8]",
)
@option(PROMPT, "--system", metavar="TEXT", help="System message of the chat.")
@option(PROMPT, "--raw", is_flag=True, help="Continue prompts as they are, though the bundle has a chat template.")
@request_options
@option(OUTPUT, "--json", "json_output", is_flag=True, help="Print the counts as one JSON object at the end.")
def specbatch(
    bundle: Path,
    input: Path,
    output: Path,
    address: str | None,
    replicas: int | None,
    cpus_per_replica: int | None,
    slots: int,
    system: str | None,
    raw: bool,
    json_output: bool,
    **options: Any,
) -> int:
    """Answer each row of INPUT in the folder OUTPUT, on this machine or on a Ray cluster.

    INPUT is a .jsonl or .parquet file, or a folder of them; a row says what a line of specrun --prompts says. OUTPUT
    gets parts of the same kind, or of the one that its own suffix names. A job that was killed goes on where it was:
    rows are known by their keys, or by their numbers where they have none. docs/scale.md says more.

    \b
    specbatch my.bundle questions.jsonl answers
    specbatch my.bundle questions.parquet answers.parquet --address head:6379 --cpus-per-replica 16
    """
    if raw and system is not None:
        raise MxspecError("--system: given with --raw, which leaves the chat template out")
    try:
        import ray  # noqa: F401
    except ImportError:
        raise MxspecError('specbatch: Ray is not installed; pip install "mxspec[ray]"') from None
    from mxspec.serve.jobs.cluster import ClusterLayout
    from mxspec.serve.jobs.rows import Rows
    from mxspec.serve.jobs.run import run_job

    defaults = Defaults(request_settings(options), system, raw)
    layout = ClusterLayout(address, replicas, cpus_per_replica, slots)
    return run_job(bundle, Rows.of(input), output, defaults, layout, json_output=json_output)
