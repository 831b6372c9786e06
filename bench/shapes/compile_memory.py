"""How much time and memory does speccompile take for a large pair?

    python -m bench compile-memory --shape llama-2-7b --record build/records/compile_7b.json
    python -m bench compile-memory --shape llama-2-7b --layers 2 --gptq 8192
    python -m bench compile-memory --shape gpt-oss-20b --layers 4

Writes a checkpoint of the shape with random fp16 weights, a shard a layer (two bytes a weight: 13.5 GB for 7B), and
compiles it, with a draft like the demo's, in a process that is watched. A mixture has a matrix for each expert, or like
gpt-oss the blocks and scales of all experts. Anonymous memory is what counts: pages of files that are
mapped or cached go when others need the memory. With --limit the process runs in a memory cgroup (version 1, as root)
in which those pages count too, and is killed where it needs more. With --gptq it rounds with error compensation on that
many tokens of random text; with --layers the model has fewer layers of the same widths, and the time that rounding all
of them would take is extrapolated.
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
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from safetensors.numpy import save_file

from bench.measurement import measurement
from bench.results import CompileResult
from bench.shapes.known import DECODERS, AnyDecoder, MixtureShape, draft_shape
from bench.shapes.random_bundle import config_of, write_tokenizer
from bench.shapes.random_weights import SCALE_BYTE, random_halves
from mxspec.compile.checkpoint.names import name_parameters
from mxspec.evaluate.bench.machine import anonymous_bytes

CONSOLE = Console(stderr=True)
CGROUPS = Path("/sys/fs/cgroup/memory")
SAMPLE_SECONDS = 0.02


def layer_weights(shape: AnyDecoder) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of one layer, by their names after `model.layers.N.`"""
    hidden, rows, cache = shape.hidden_size, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    attention = {
        "self_attn.q_proj.weight": (rows, hidden),
        "self_attn.k_proj.weight": (cache, hidden),
        "self_attn.v_proj.weight": (cache, hidden),
        "self_attn.o_proj.weight": (hidden, rows),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if isinstance(shape, MixtureShape):
        return attention | experts_weights(shape)
    return attention | gated("mlp.", hidden, shape.intermediate_size)


def gated(path: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    """A gated feed-forward, or one expert."""
    up = dict.fromkeys((f"{path}gate_proj.weight", f"{path}up_proj.weight"), (inner, hidden))
    return {**up, f"{path}down_proj.weight": (hidden, inner)}


def experts_weights(shape: MixtureShape) -> dict[str, tuple[int, ...]]:
    """The router, the experts, and what else the family has; experts in blocks are not among these."""
    hidden, cache = shape.hidden_size, shape.kv_heads * shape.head_size
    if shape.model_type == "gpt_oss":
        return {
            "self_attn.q_proj.bias": (shape.heads * shape.head_size,),
            "self_attn.k_proj.bias": (cache,),
            "self_attn.v_proj.bias": (cache,),
            "self_attn.o_proj.bias": (hidden,),
            "self_attn.sinks": (shape.heads,),
            "mlp.router.weight": (shape.experts, hidden),
            "mlp.router.bias": (shape.experts,),
            "mlp.experts.gate_up_proj_bias": (shape.experts, 2 * shape.expert_width),
            "mlp.experts.down_proj_bias": (shape.experts, hidden),
        }
    queries, keys = (hidden, cache) if shape.model_type == "olmoe" else (shape.head_size, shape.head_size)
    norms = {"self_attn.q_norm.weight": (queries,), "self_attn.k_norm.weight": (keys,)}
    experts = (gated(f"mlp.experts.{i}.", hidden, shape.expert_width) for i in range(shape.experts))
    return {**norms, "mlp.gate.weight": (shape.experts, hidden)} | {
        name: sizes for expert in experts for name, sizes in expert.items()
    }


def expert_blocks(shape: AnyDecoder, rng: np.random.Generator) -> dict[str, NDArray[np.uint8]]:
    """The MXFP4 codes and scales of gpt-oss's experts; nothing for other models."""
    if not isinstance(shape, MixtureShape) or shape.model_type != "gpt_oss":
        return {}
    found = {}
    for name, n, k in (
        ("gate_up_proj", 2 * shape.expert_width, shape.hidden_size),
        ("down_proj", shape.hidden_size, shape.expert_width),
    ):
        found[f"mlp.experts.{name}_blocks"] = rng.integers(0, 256, (shape.experts, n, k // 32, 16), np.uint8)
        found[f"mlp.experts.{name}_scales"] = np.full((shape.experts, n, k // 32), SCALE_BYTE, np.uint8)
    return found


def settings_of(shape: AnyDecoder) -> dict[str, Any]:
    """The checkpoint's config.json."""
    settings: dict[str, Any] = config_of(shape).to_dict()
    blocks = isinstance(shape, MixtureShape) and shape.model_type == "gpt_oss"
    return settings | ({"quantization_config": {"quant_method": "mxfp4"}} if blocks else {})


def write_checkpoint(folder: Path, shape: AnyDecoder) -> int:
    """Write a checkpoint unless it is there; all layers have the values of one. Returns the number of weights."""
    layer = layer_weights(shape)
    ends = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden_size),
        "lm_head.weight": (shape.vocab_size, shape.hidden_size),
        "model.norm.weight": (shape.hidden_size,),
    }
    count: int = sum(parameter.numel() for parameter in name_parameters(config_of(shape)).parameters())
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return count
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    values: dict[str, NDArray[Any]] = {name: random_halves(sizes, rng) for name, sizes in layer.items()}
    values |= expert_blocks(shape, rng)
    shards = {"ends.safetensors": {name: random_halves(sizes, rng) for name, sizes in ends.items()}}
    save_file(shards["ends.safetensors"], folder / "ends.safetensors")
    places = dict.fromkeys(ends, "ends.safetensors")
    for number in range(shape.layers):
        tensors = {f"model.layers.{number}.{name}": value for name, value in values.items()}
        save_file(tensors, folder / f"layer-{number}.safetensors")
        places |= dict.fromkeys(tensors, f"layer-{number}.safetensors")
    (folder / "config.json").write_text(json.dumps(settings_of(shape)))
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


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def watch(command: list[str], group: Path | None) -> tuple[dict[str, Any], int]:
    """What `command --json` prints, and the most anonymous bytes that it had."""
    enter = None if group is None else partial(_enter, group)
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


def rounding_keys(work: Path, shape: AnyDecoder, tokens: int | None) -> str:
    """Lines of a recipe, and the random text that they name; without `tokens`, to nearest and unmeasured."""
    if tokens is None:
        return "rounding_minutes = 0\n"
    ids = np.random.default_rng(0).integers(0, shape.vocab_size, 2 * tokens)
    (work / "text.txt").write_text(" ".join(f"<{token}>" for token in ids))
    return f'rounding = "gptq"\ncalibrate = "./text.txt"\ncalibration_tokens = {tokens}\n'


@measurement
@click.option("--shape", type=click.Choice(sorted(DECODERS)), default="llama-2-7b", show_default=True)
@click.option("--limit", type=int, help="Bytes of a memory cgroup to run in.")
@click.option("--layers", type=click.IntRange(min=1), help="Fewer layers than the shape has.")
@click.option("--gptq", type=click.IntRange(min=2), metavar="TOKENS", help="Round with gptq on this many tokens.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/compile_memory"), show_default=True)
def main(shape: str, limit: int | None, layers: int | None, gptq: int | None, work: Path) -> CompileResult:
    """Compile a pair of random weights, and say what it took."""
    CONSOLE.print(f"writing a checkpoint of {shape}")
    whole = DECODERS[shape]
    cut = replace(whole, layers=layers or whole.layers)
    folder = shape if layers is None else f"{shape}-{layers}-layers"
    weights = write_checkpoint(work / folder, cut)
    draft = f"draft-{whole.vocab_size}-tokens"
    write_checkpoint(work / draft, draft_shape(whole))
    recipe = work / f"{folder}.toml"
    recipe.write_text(
        f'name = "{shape}"\n{rounding_keys(work, cut, gptq)}'
        f'[target]\ncheckpoint = "./{folder}"\n[draft]\ncheckpoint = "./{draft}"\n'
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
    return CompileResult(
        shape=shape,
        layers=cut.layers,
        whole_layers=whole.layers,
        gptq_tokens=gptq,
        weights=weights,
        seconds=report["seconds"],
        stage_seconds=stages,
        weights_per_second=weights / stages["pack target"],
        anonymous_bytes=peak,
        cgroup_bytes=limit,
        rounding_seconds_of_whole=whole_seconds,
    )
