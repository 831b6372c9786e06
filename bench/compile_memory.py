"""How much time and memory does speccompile take for a large pair?

    python bench/compile_memory.py --shape llama-2-7b --record build/records/compile_7b.json
    python bench/compile_memory.py --shape llama-2-7b --layers 2 --gptq 8192

Writes a checkpoint of the shape with random fp16 weights, a shard a layer (two bytes a weight: 13.5 GB for 7B), and
compiles it, with a draft like the demo's, in a process that is watched. Anonymous memory is what counts: pages of files
that are mapped or cached go when others need the memory. With --limit the process runs in a memory cgroup (version 1,
as root) in which those pages count too, and is killed where it needs more. With --gptq it rounds with error
compensation on that many tokens of random text; with --layers the model has fewer layers of the same widths, and the
time that rounding all of them would take is extrapolated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from results import CompileResult
from rich.console import Console
from safetensors.numpy import save_file

from mxspec.evaluate.bench.memory import anonymous_bytes
from mxspec.evaluate.bench.shapes.known import SHAPES, Shape, draft_shape
from mxspec.evaluate.bench.shapes.random_bundle import config_of, write_tokenizer
from mxspec.evaluate.bench.shapes.random_weights import random_halves
from mxspec.evaluate.options import Run, record_options
from mxspec.runtime.cli.command import Command

CONSOLE = Console(stderr=True)
CGROUPS = Path("/sys/fs/cgroup/memory")
SAMPLE_SECONDS = 0.02


def layer_weights(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of one layer, by their names after `model.layers.N.`"""
    hidden, inner, cache = shape.hidden_size, shape.intermediate_size, shape.kv_heads * shape.head_size
    return {
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.k_proj.weight": (cache, hidden),
        "self_attn.v_proj.weight": (cache, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }


def write_checkpoint(folder: Path, shape: Shape) -> int:
    """Write a checkpoint unless it is there; all layers have the values of one. Returns the number of weights."""
    layer = layer_weights(shape)
    ends = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden_size),
        "lm_head.weight": (shape.vocab_size, shape.hidden_size),
        "model.norm.weight": (shape.hidden_size,),
    }
    count = sum(int(np.prod(s)) for s in ends.values()) + shape.layers * sum(int(np.prod(s)) for s in layer.values())
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return count
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    values = {name: random_halves(sizes, rng) for name, sizes in layer.items()}
    shards = {"ends.safetensors": {name: random_halves(sizes, rng) for name, sizes in ends.items()}}
    save_file(shards["ends.safetensors"], folder / "ends.safetensors")
    places = dict.fromkeys(ends, "ends.safetensors")
    for number in range(shape.layers):
        tensors = {f"model.layers.{number}.{name}": value for name, value in values.items()}
        save_file(tensors, folder / f"layer-{number}.safetensors")
        places |= dict.fromkeys(tensors, f"layer-{number}.safetensors")
    (folder / "config.json").write_text(config_of(shape).to_json_string(use_diff=False))
    write_tokenizer(folder / "tokenizer.json", shape.vocab_size)
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return count


@contextmanager
def memory_cgroup(limit: int | None) -> Iterator[Path | None]:
    """A cgroup of at most `limit` bytes, page cache included."""
    if limit is None:
        yield None
        return
    group = CGROUPS / f"mxspec-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        raise click.ClickException(f"--limit: no memory cgroup can be made here: {error}") from None
    try:
        yield group
    finally:
        group.rmdir()


def watch(command: list[str], group: Path | None) -> tuple[dict[str, Any], int]:
    """What `command --json` prints, and the most anonymous bytes that it had."""
    enter = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode != 0:
        raise click.ClickException(f"{' '.join(command)}: exit code {process.returncode}")
    return json.loads(output), peak


def rounding_keys(work: Path, shape: Shape, tokens: int | None) -> str:
    """Lines of a recipe, and the random text that they name; without `tokens`, to nearest and unmeasured."""
    if tokens is None:
        return "rounding_minutes = 0\n"
    ids = np.random.default_rng(0).integers(0, shape.vocab_size, 2 * tokens)
    (work / "text.txt").write_text(" ".join(f"<{token}>" for token in ids))
    return f'rounding = "gptq"\ncalibrate = "./text.txt"\ncalibration_tokens = {tokens}\n'


@click.command(cls=Command)
@click.option("--shape", type=click.Choice(sorted(SHAPES)), default="llama-2-7b", show_default=True)
@click.option("--limit", type=int, help="Bytes of a memory cgroup to run in.")
@click.option("--layers", type=click.IntRange(min=1), help="Fewer layers than the shape has.")
@click.option("--gptq", type=click.IntRange(min=2), metavar="TOKENS", help="Round with gptq on this many tokens.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/compile_memory"), show_default=True)
@record_options
def main(shape: str, limit: int | None, layers: int | None, gptq: int | None, work: Path, run: Run) -> None:
    """Compile a pair of random weights, and say what it took."""
    CONSOLE.print(f"writing a checkpoint of {shape}")
    whole = SHAPES[shape]
    cut = replace(whole, layers=layers or whole.layers)
    folder = shape if layers is None else f"{shape}-{layers}-layers"
    weights = write_checkpoint(work / folder, cut)
    write_checkpoint(work / "draft", draft_shape(whole))
    recipe = work / f"{folder}.toml"
    recipe.write_text(
        f'name = "{shape}"\n{rounding_keys(work, cut, gptq)}'
        f'[target]\ncheckpoint = "./{folder}"\n[draft]\ncheckpoint = "./draft"\n'
    )
    bundle = work / f"{folder}.bundle"
    speccompile = str(Path(sys.executable).with_name("speccompile"))
    with memory_cgroup(limit) as group:
        report, peak = watch([speccompile, str(recipe), "-o", str(bundle), "--force", "--json"], group)
    shutil.rmtree(bundle)
    stages = report["stage_seconds"]
    whole_seconds = None  # an upper bound: it counts the head once for each layer
    if gptq is not None:
        whole_seconds = stages["round target"] * whole.layers / cut.layers
    run.finish(
        CompileResult(
            shape=shape,
            layers=cut.layers,
            gptq_tokens=gptq,
            weights=weights,
            seconds=report["seconds"],
            stage_seconds=stages,
            weights_per_second=weights / stages["pack target"],
            anonymous_bytes=peak,
            cgroup_bytes=limit,
            rounding_seconds_of_whole=whole_seconds,
        )
    )


if __name__ == "__main__":
    main()
