"""`speccheck`: is a bundle right?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mxspec.evaluate.accuracy import Comparison, compare_models
from mxspec.evaluate.finish import finish, report
from mxspec.evaluate.logits import measure_logits
from mxspec.evaluate.lossless.command import lossless
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, CheckFailed
from mxspec.formats.manifest import ModelEntry, ModelName
from mxspec.recipes.recipe import Recipe, from_here
from mxspec.runtime.command import Group, read_text, report_console
from mxspec.runtime.engine import Engine

MODELS: tuple[ModelName, ...] = get_args(ModelName)
MAX_RATIO = 1.01  # perplexity of the packed target over that of the fp16 one


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Check that a bundle is right."""


main.add_command(lossless)


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--text", "text_file", required=True, type=click.Path(path_type=Path), help="UTF-8 text to score.")
@click.option("--max-tokens", type=click.IntRange(min=2), help="Score no more than the first N tokens.")
@click.option(
    "--max-ratio", type=click.FloatRange(min=1.0), help=f"Most that passes. [the bundle's own budget, or {MAX_RATIO}]"
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads to use.  [default: all cores]")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write a record of the run.")
def accuracy(
    bundle: Path,
    text_file: Path,
    max_tokens: int | None,
    max_ratio: float | None,
    threads: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Compare the packed target with the fp16 one that `speccompile --with-baseline` put beside it.

    Perplexity of both on a text, mean KL divergence and share of equal top tokens; exit code 2 when the ratio of the
    perplexities is beyond --max-ratio.
    """
    text = read_text(text_file, "--text")
    console = report_console(json_output=json_output)
    engine = Engine(bundle, threads=threads)
    models = engine.bundle.manifest.models
    if "baseline" not in models:
        raise BundleError(
            f"{bundle}: got no baseline model, expected the fp16 target beside the packed one: "
            "compile it with speccompile --with-baseline"
        )
    token_ids = engine.encode(text)[:max_tokens]
    comparison = score_with_progress(engine, token_ids, models["target"].context_length, console)
    result = describe(comparison, models["target"], max_ratio)
    finish(result, [as_table(result)], json_output, record)
    if not result["passed"]:
        raise CheckFailed(
            f"perplexity ratio: got {comparison.ratio:.5f}, expected at most {result['max_ratio']}: "
            "keep sensitive tensors in fp16 (speccompile --keep-fp16) or use mxfp6_e2m3"
        )


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@click.option("--adapter", metavar="ADAPTER", help="The LoRA adapter that was merged: a folder or a hub id.")
@click.option("--from-pickle", is_flag=True, help="Read weights that are there as pickles alone; no code is run.")
@click.option("--model", type=click.Choice(MODELS), default="target", show_default=True, help="Of the bundle.")
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text.  [default: random tokens]")
@click.option("--tokens", type=click.IntRange(min=2), help="Length of each of the four texts.  [default: 72]")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write a record of the run.")
def logits(
    bundle: Path,
    checkpoint: str,
    adapter: str | None,
    from_pickle: bool,
    model: ModelName,
    text_file: Path | None,
    tokens: int | None,
    json_output: bool,
    record: Path | None,
) -> None:
    """Compare a model of BUNDLE with transformers' float32 forward of CHECKPOINT, which it was made from.

    CHECKPOINT is a folder or a hub id. The largest difference of the logits as a share of the largest, read as prompts,
    steps, scored rows and after a rollback; exit code 2 when it is beyond what half-precision caches explain. Needs
    memory for the checkpoint's weights in float32, and all processor cores.
    """
    text = None if text_file is None else read_text(text_file, "--text")
    origin = Recipe.of_checkpoints(checkpoint).with_changes(
        from_pickle=from_pickle or None, target={"adapter": None if adapter is None else from_here(adapter)}
    )
    result = measure_logits(Bundle.open(bundle), model, origin, text, tokens)
    report(result, json_output, record)
    if not result.passed:
        raise CheckFailed(
            f"{model}: differs from transformers with the same weights by {result.error_stored_weights:.1e} of the "
            f"largest logit, expected at most {result.tolerance:g}: the bundle is wrong"
        )


def score_with_progress(engine: Engine, token_ids: list[int], window: int, console: Console) -> Comparison:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    comparison = Comparison()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("scoring tokens", total=len(token_ids))
        for comparison in compare_models(engine, token_ids, window):
            ratio = f"ratio {comparison.ratio:.5f}"
            progress.update(task, completed=comparison.tokens, description=f"scoring tokens, {ratio}")
    return comparison


def describe(comparison: Comparison, target: ModelEntry, max_ratio: float | None) -> dict[str, Any]:
    """The result as one flat object: what --json prints and a record holds.

    Without a `max_ratio` the bar is the one that the target's formats were chosen for.
    """
    budget = target.budget
    max_ratio = max_ratio or (budget and budget.max_ratio) or MAX_RATIO
    predicted = {} if budget is None else {"predicted_ratio": budget.predicted_ratio}
    return {
        "format": target.format,
        "tokens": comparison.tokens,
        "target_perplexity": comparison.target_perplexity,
        "baseline_perplexity": comparison.baseline_perplexity,
        "ratio": comparison.ratio,
        **predicted,
        "max_ratio": max_ratio,
        "mean_kl_divergence": comparison.mean_kl_divergence,
        "same_top_share": comparison.same_top_share,
        "passed": comparison.ratio <= max_ratio,
    }


def as_table(result: dict[str, Any]) -> Table:
    table = Table(title="accuracy of the packed target", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    rows = {
        "format": result["format"],
        "tokens scored": f"{result['tokens']:,}",
        "perplexity, packed": f"{result['target_perplexity']:.4f}",
        "perplexity, fp16": f"{result['baseline_perplexity']:.4f}",
        f"ratio (at most {result['max_ratio']})": f"{result['ratio']:.5f}",
        **({"ratio predicted": f"{result['predicted_ratio']:.5f}"} if "predicted_ratio" in result else {}),
        "mean KL divergence (nats)": f"{result['mean_kl_divergence']:.6f}",
        "same top token": f"{result['same_top_share']:.2%}",
        "verdict": "passed" if result["passed"] else "failed",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    main()
