"""`specbench`: is a bundle fast?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mxspec.evaluate.bench import batch, model, speculate
from mxspec.evaluate.bench import ops as ops_bench
from mxspec.evaluate.bench.commands.columns import columns
from mxspec.evaluate.bench.commands.grow import grow
from mxspec.evaluate.bench.profile import measure as profile
from mxspec.evaluate.bench.profile.table import call_table
from mxspec.evaluate.bench.shapes.known import SHAPES
from mxspec.evaluate.bench.speculate_tables import plain_table, speculate_table, turns_table
from mxspec.evaluate.bench.tables import attention_table, model_table, products_table
from mxspec.evaluate.finish import finish
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.formats.native import ISAS
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES, Activations, named_by_user, taken_activations
from mxspec.runtime import ops
from mxspec.runtime.command import Group, read_text, report_console
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.text.tokenizer import load_tokenizer

SPEAKING = tuple(name for name in NAMES if name != "none")  # drafters that propose anything


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Measure kernels, models and speculation: medians of interleaved repetitions, beside the machine's limit."""


main.add_command(columns)
main.add_command(grow)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--threads", type=click.IntRange(min=1), help="Threads to use.  [default: all cores]"),
        click.option("--json", "json_output", is_flag=True, help="Print one JSON object."),
        click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write a record of the run."),
    ):
        command = option(command)
    return command


def shape_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.argument("bundle", required=False, type=click.Path(path_type=Path)),
        click.option("--shape", type=click.Choice(sorted(SHAPES)), help="A bundle of random weights, in its place."),
        click.option("--format", "weight_format", type=click.Choice(USER_NAMES), help="Of its matrices. [mxfp6_e3m2]"),
        click.option("--activations", type=click.Choice(ACTIVATIONS), help="Of its products. [int16]"),
        click.option(
            "--work",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(tempfile.gettempdir()) / "mxspec-shapes",
            help="Bundles of random weights are kept here.",
        ),
    ):
        command = option(command)
    return command


def choose_bundle(
    bundle: Path | None, shape: str | None, weight_format: str | None, activations: Activations | None, work: Path
) -> Path:
    if (bundle is None) == (shape is None):
        raise MxspecError("expected either BUNDLE or --shape")
    if bundle is not None:
        if weight_format or activations:
            raise MxspecError("--format and --activations go with --shape; a bundle has its own")
        return bundle
    try:
        from mxspec.evaluate.bench.shapes.random_bundle import random_bundle
    except ModuleNotFoundError as error:
        raise MxspecError(f"--shape exports a graph, which needs {error.name}: pip install mxspec[compile]") from None
    assert shape is not None
    work.mkdir(parents=True, exist_ok=True)
    weight_format, activations = named_by_user(weight_format or "mxfp6_e3m2"), activations or "int16"
    if activations not in (taken := taken_activations(weight_format)):
        raise MxspecError(f"--activations: got {activations}, but products of {weight_format} take {', '.join(taken)}")
    return random_bundle(SHAPES[shape], work, weight_format, activations=activations)


@main.command("ops")
@click.option("--isa", "isas", multiple=True, type=click.Choice(ISAS), help="Only this one (may be repeated).")
@click.option("--format", "formats", multiple=True, type=click.Choice(ops_bench.FORMATS), help="Likewise.")
@click.option("--activations", multiple=True, type=click.Choice(ACTIVATIONS), help="Likewise.")
@click.option("--rows", multiple=True, type=click.IntRange(min=1), help="Likewise.")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(min=1))
@common_options
def bench_ops(
    isas: tuple[str, ...],
    formats: tuple[str, ...],
    activations: tuple[Activations, ...],
    rows: tuple[int, ...],
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Time the packed product and attention alone, on every instruction set, each call beside a plain read."""
    if threads is not None:
        ops.set_threads(threads)
    console = report_console(json_output=json_output)
    with console.status("allocating") as status:
        result = ops_bench.measure(
            isas or ISAS,
            formats or ops_bench.FORMATS,
            activations or ACTIVATIONS,
            rows or ops_bench.ROWS,
            repetitions,
            status.update,
        )
    finish(result, (products_table(result), attention_table(result)), json_output, record)


@main.command("model")
@shape_options
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(min=1))
@common_options
def bench_model(
    bundle: Path | None,
    shape: str | None,
    weight_format: str | None,
    activations: Activations | None,
    work: Path,
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Time a whole target: decoding, scoring, prefill, loading, memory."""
    console = report_console(json_output=json_output)
    with console.status("preparing") as status:
        path = choose_bundle(bundle, shape, weight_format, activations, work)
        result = model.measure(path, threads, repetitions, status.update)
    finish(result, [model_table(path.name, result)], json_output, record)


@main.command("profile")
@shape_options
@click.option(
    "--rows", multiple=True, type=click.IntRange(min=1), help="Tokens a call (may be repeated).  [default: 1, 8]"
)
@click.option("--cached", multiple=True, type=click.IntRange(min=0), help="After so many.  [default: 128, 1000]")
@click.option("--repetitions", default=5, show_default=True, type=click.IntRange(min=1))
@common_options
def bench_profile(
    bundle: Path | None,
    shape: str | None,
    weight_format: str | None,
    activations: Activations | None,
    work: Path,
    rows: tuple[int, ...],
    cached: tuple[int, ...],
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Say where the time of a target's call goes: kinds of nodes, between them, outside the session."""
    console = report_console(json_output=json_output)
    with console.status("preparing") as status:
        path = choose_bundle(bundle, shape, weight_format, activations, work)
        result = profile.measure(path, threads, repetitions, rows, cached, status.update)
    finish(result, [call_table(call, result) for call in result["calls"]], json_output, record)


@main.command("speculate")
@shape_options
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.")
@click.option("--prompts", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=2))
@click.option("--acceptance", type=click.FloatRange(0, 1), help="Impose it: random weights agree on nothing.")
@click.option(
    "--drafter", "drafters", multiple=True, type=click.Choice(SPEAKING), help="May be repeated.  [default: model]"
)
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(min=1))
@common_options
def bench_speculate(
    bundle: Path | None,
    shape: str | None,
    weight_format: str | None,
    activations: Activations | None,
    work: Path,
    text_file: Path | None,
    prompts: int,
    new_tokens: int,
    acceptance: float | None,
    drafters: tuple[str, ...],
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Time speculative against plain decoding for K = 1 to 8, beside what the formula predicts.

    Texts are greedy and go on after an end of text. c and v are what a drafted token and a scored round cost over a
    plain step, in the rounds themselves; ideal and predicted are (1 - a^(K+1)) / (1 - a) tokens a round, and that over
    cK + v.
    """
    if threads is not None:
        ops.set_threads(threads)
    console = report_console(json_output=json_output)
    with console.status("preparing") as status:
        path = choose_bundle(bundle, shape, weight_format, activations, work)
        token_ids = read_tokens(path, text_file, prompts)
        bench = speculate.SpeculateBench(path, speculate.prompts_of(token_ids, prompts), new_tokens, acceptance)
        ks = range(1, min(8, bench.engine.bundle.manifest.k_max) + 1)
        result = speculate.measure(bench, ks, repetitions, drafters or ("model",), status.update)
    tables = [speculate_table(path.name, name, found) for name, found in result["drafters"].items()]
    finish(result, [plain_table(result), *tables, turns_table(result)], json_output, record)


@main.command("batch")
@shape_options
@click.option("--new-tokens", default=64, show_default=True, type=click.IntRange(min=2), help="Of each text.")
@click.option("--acceptance", default=0.75, show_default=True, type=click.FloatRange(0, 1), help="Imposed on drafts.")
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(min=1))
@common_options
def bench_batch(
    bundle: Path | None,
    shape: str | None,
    weight_format: str | None,
    activations: Activations | None,
    work: Path,
    new_tokens: int,
    acceptance: float,
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Time 1, 2, 4 and 8 texts at once: beside what their calls allow, at every K, and a second turn."""
    console = report_console(json_output=json_output)
    with console.status("preparing") as status:
        path = choose_bundle(bundle, shape, weight_format, activations, work)
        bench = batch.BatchBench(path, new_tokens, acceptance, threads)
        result = batch.measure(bench, repetitions, status.update)
    table = Table(
        "texts",
        "tok/s",
        "over one",
        "of what the call allows",
        "outside the models",
        "sampled",
        "best K",
        "K by load over it",
        "over K = 0",
        title=f"{path.name}, {result['threads']} threads; {new_tokens} tokens after {result['cached']} each",
        title_justify="left",
    )
    for row in result["rows"]:
        table.add_row(
            str(row["texts"]),
            f"{row['tokens_per_second']:.1f}",
            f"{row['over_one_text']:.2f}",
            f"{row['of_what_the_call_allows']:.1%}",
            f"{row['outside_models']:.1%}",
            f"{row['outside_models_sampled']:.1%}",
            str(row["best_k"]),
            f"{row['by_load_over_best_k']:.2f}",
            f"{row['by_load_over_plain']:.2f}",
        )
    finish(result, [table, more_of_batch(result)], json_output, record)


def more_of_batch(result: dict[str, Any]) -> Table:
    """What does not depend on how many texts there are."""
    turn, shaping = result["second_turn"], result["shaping"]
    first, more = turn["tokens"]
    table = Table("", "")
    table.add_row("time of one text over a plain loop", f"{result['rows'][0]['time_over_plain_loop']:.3f}")
    table.add_row(
        f"first token of a turn of {more} after {first:,}",
        f"{turn['seconds'] * 1e3:.0f} ms, {turn['ratio']:.3f} of reading all again",
    )
    table.add_row(
        f"shaping a row of {shaping['vocabulary']:,} to a nucleus of about {shaping['nucleus']:,}",
        f"{shaping['seconds_a_row'] * 1e6:.0f} us; for 8 texts {shaping['share_of_a_step']:.1%} of a call",
    )
    return table


def read_tokens(bundle: Path, text_file: Path | None, prompts: int) -> list[int]:
    """Tokens of the text; of random ids where there is none."""
    opened = Bundle.open(bundle)
    if text_file is None:
        count = prompts * speculate.PROMPT_TOKENS
        ids = np.random.default_rng(0).integers(0, opened.manifest.tokenizer.vocab_size, count)
        return [int(token) for token in ids]
    return list(load_tokenizer(opened.tokenizer_path).encode(read_text(text_file, "--text")).ids)


if __name__ == "__main__":
    main()
