"""Round a planned model as the recipe wants it, or say that it is rounded while it is packed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import own_codes
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.progress import Stages
from mxspec.compile.weights.calibration_text import write_calibration_text
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.model import ModelRounder, rounding_work
from mxspec.compile.weights.rounding.moments import DAMPING
from mxspec.compile.weights.rounding.store import TO_NEAREST, RoundedModel, RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText, read_calibration
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.manifest import RoundingEntry
from mxspec.formats.weight_format import FP16_TILES
from mxspec.runtime.text.tokenizer import load_tokenizer

WAY = "two streams, inputs of length one, best of three exponents"
"""How gptq rounds: what a run that was killed left of another way is not taken up."""


def round_model(model: Model, place: Path, stages: Stages) -> RoundedModel:
    """What the packer needs; with `gptq` the matrices themselves, in a folder below `place`.

    A run that was killed goes on there at its layer. Raises MxspecError for a bad text or a damaged checkpoint.
    """
    plan, checkpoint, recipe = model.plan, model.checkpoint, model.recipe
    formats = mx_formats(plan)
    if model.rounding == "nearest" or not formats:
        return TO_NEAREST
    if model.rounding == "scale":
        return RoundedModel(RoundingEntry(method="scale"), search=True)
    if model.rows is not None:
        states, rows = "the draft reads hidden states", "the draft's head has other rows than the checkpoint's"
        reason = states if plan.reads_states else rows
        return RoundedModel(RoundingEntry(method="gptq", nearest=dict.fromkeys(formats, reason)))
    try:
        layered = LayeredModel(checkpoint.config, plan.sources)
    except UnsupportedModelError as error:
        return RoundedModel(RoundingEntry(method="gptq", nearest=dict.fromkeys(formats, str(error))))
    if recipe.calibrate is None:
        text = CalibrationText(write_calibration_text(model, model.calibration_tokens, place, stages), None)
    else:
        tokenizer, length = load_tokenizer(checkpoint.tokenizer), model.context_length
        text = read_calibration(recipe.calibration_file(), tokenizer, model.calibration_tokens, length, recipe.seed)
    store = RoundingStore(place / f"{model.name}-{_key(plan, formats, text)}")
    work = rounding_work(layered, plan.sources, formats, text.tokens)
    with stages.work(f"round {model.name}", work) as advance:
        matrices = ModelRounder(layered, plan.sources, formats, store).run(text, advance)
    nearest = {name: "it is not part of a decoder layer" for name in formats if name not in matrices}
    nearest |= {name: matrix.fallback for name, matrix in matrices.items() if matrix.fallback is not None}
    entry = RoundingEntry(
        method="gptq",
        text_sha256=text.sha256,
        tokens=text.tokens,
        seed=recipe.seed,
        damping=DAMPING,
        nearest=nearest,
        few={name: matrix.few for name, matrix in matrices.items() if matrix.few},
    )
    return RoundedModel(entry, matrices=matrices)


def scratch_bytes(model: Model) -> int:
    """What `round_model` keeps on disk until the bundle is whole.

    That is the rounded matrices, what goes into a layer and comes out of it in two streams, what its matrices read, and
    the drift of one group's inputs.
    """
    plan, recipe = model.plan, model.recipe
    matrices = _mx_matrices(plan)
    if model.rounding != "gptq" or not matrices:
        return 0
    widths = [spec.shape[1] for spec in matrices]
    floats = 4 * min(widths) + sum(widths) // plan.exported.layers
    inputs = 4 * model.calibration_tokens * floats
    writer = plan.weight_count * 9 // 8 if recipe.calibrate is None else 0  # it is gone before an input is kept
    drift = 4 * max(widths) ** 2
    return sum(spec.stored_bytes for spec in matrices) + max(inputs + drift, writer)


def mx_formats(plan: ModelPlan) -> dict[str, str]:
    """The format of each matrix that is to be rounded to an MX format, by parameter name."""
    return {
        parameter: spec.format
        for spec in _mx_matrices(plan)
        for parameter in spec.sources
        if not own_codes(plan.sources[parameter], spec)
    }


def _mx_matrices(plan: ModelPlan) -> list[WeightSpec]:
    return [spec for spec in plan.exported.weights if spec.kind == "matmul" and spec.format != FP16_TILES]


def _key(plan: ModelPlan, formats: Mapping[str, str], text: CalibrationText) -> str:
    """What a rounding depends on, so that a later run takes up its own and no other."""
    digest = hashlib.sha256(f"{WAY}\n".encode() + text.windows.tobytes())
    for name, format_name in sorted(formats.items()):
        source = plan.sources[name]
        file = source.identity
        digest.update(f"{name} {format_name} {source.name} {file}\n".encode())
    return digest.hexdigest()[:16]
