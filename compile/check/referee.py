"""The gate of every compile: a small twin of the model is compiled and compared with transformers' forward in float32.

No list says which models may be compiled. A twin (twin.py) has the model's own config, random weights, fp16 matrices
and float32 caches; its logits, read in every way of the runtime (readings.py), must agree with transformers. Weights
have two scales, because neither shows all errors: with quiet weights attention is flat, so that wrong positions and
caps do not show; with loud ones an epsilon does not. Texts are at the beginning of the context and at its end.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedConfig

from mxspec.compile.check.readings import LENGTH, SLOTS, Reading, random_texts, read_texts, shortened
from mxspec.compile.check.reference import (
    Difference,
    first_positions,
    largest_difference,
    load_reference,
    oracle,
    pad_of,
    states_difference,
)
from mxspec.compile.check.twin import (
    LOUD,
    QUIET,
    WINDOWS,
    Scale,
    layer_kinds,
    layers_of_each_kind,
    outputs_of_twin,
    shrink,
    write_twin,
)
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.settings.architecture import architecture_name
from mxspec.compile.checkpoint.settings.config import one_line
from mxspec.compile.planning.model import Model, ModelPlan, RefereeVerdict
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import BundleError, CheckFailed, MxspecError, UnsupportedModelError
from mxspec.formats.manifest import ModelEntry, RefereeEntry
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe
from mxspec.runtime.models.graph import session_options
from mxspec.runtime.models.session import Session

# Largest errors that arithmetic explains, as shares of the largest logit. Seen in 59 configs: up to 6e-6 and 1e-5.
# The smallest that is wrong: an epsilon 5 % off shows 4e-4 (Gemma, quiet), GELU's tanh for its erf 9e-5 (loud).
TOLERANCE = {QUIET: 2e-5, LOUD: 4e-5}
_PLAIN = TargetRecipe(checkpoint="twin", format=FP16_TILES)
_RECIPE = Recipe(name="twin", caches="float32", target=_PLAIN, draft=DraftRecipe(checkpoint="twin"))


@dataclass(frozen=True, slots=True)
class Twin:
    """A twin's checkpoint with weights of one scale, what its graph said of texts by the position of their first
    token, and the windows of that graph's layers."""

    scale: Scale
    folder: Path
    config: PreTrainedConfig
    readings: Mapping[int, list[Reading]]
    windows: tuple[int, ...]
    hidden_state_outputs: Sequence[int] = ()

    def compare(self, config: PreTrainedConfig | None = None) -> Difference:
        """The largest difference from transformers' forward; `config` replaces the twin's own."""
        with Checkpoint(self.folder) as checkpoint:
            model = load_reference(checkpoint, config or self.config)
        found = [largest_difference(readings, oracle(model, first)) for first, readings in self.readings.items()]
        if self.hidden_state_outputs:
            found += [
                states_difference(model, each, first, self.hidden_state_outputs)
                for first, each in self.readings.items()
            ]
        return max(found, key=lambda difference: difference.error)


def judge(config: PreTrainedConfig, context_length: int, hidden_state_outputs: Sequence[int] = ()) -> RefereeVerdict:
    """Compare a twin of a model with transformers, and its hidden states at all places if it gives some.

    Raises CheckFailed if it differs, UnsupportedModelError if it cannot be compiled.
    """
    name, errors = architecture_name(config), {}
    with _one_line(name), tempfile.TemporaryDirectory(prefix="mxspec-referee-") as place:
        for twin in compile_twin(config, context_length, Path(place), hidden_state_outputs):
            difference, scale = twin.compare(), twin.scale
            if difference.error > TOLERANCE[scale]:
                raise CheckFailed(
                    f"{name}: compiled, a small twin of it with {scale.name} random weights differs from transformers "
                    f"by {difference.error:.1e} of the largest logit ({difference.way}), expected at most "
                    f"{TOLERANCE[scale]:.0e}: mxspec does not compile this model correctly"
                )
            errors[scale.name] = difference.error
            shutil.rmtree(twin.folder)
    return RefereeVerdict(RefereeEntry(**errors), twin.windows)


def compile_twin(
    config: PreTrainedConfig, context_length: int, place: Path, hidden_state_outputs: Sequence[int] = ()
) -> Iterator[Twin]:
    """Write a twin with weights of each scale below the folder `place`; the graph is exported once."""
    plan: ModelPlan | None = None
    for scale in TOLERANCE:
        folder = place / scale.name
        folder.mkdir()
        write_twin(config, folder, scale)
        with Checkpoint(folder) as checkpoint:
            given = outputs_of_twin(hidden_state_outputs, config, checkpoint.config)
            small = Model("target", checkpoint, _PLAIN, _RECIPE, context_length, given)
            plan = plan or plan_model(small)
            sources = {name: checkpoint.tensors[source.name] for name, source in plan.sources.items()}
            entry = write_model(replace(plan, sources=sources), folder, lambda count: None).entry
        readings = _read(folder, entry, checkpoint.config)
        yield Twin(scale, folder, checkpoint.config, readings, plan.exported.windows, given)


def _read(folder: Path, entry: ModelEntry, config: PreTrainedConfig) -> dict[int, list[Reading]]:
    """The graph's logits for texts at the end of the context and, if transformers allows it, at its beginning."""
    length = min(LENGTH, entry.context_length)
    short, options = shortened(entry, length), session_options()
    options.log_severity_level = 4  # a failure raises an error here, which is printed once
    session = Session(folder, short, entry.vocab_size, SLOTS, options)
    end = entry.context_length - length
    readings = {}
    texts = random_texts(entry.vocab_size, length, but=pad_of(config))
    for session.first_position in first_positions(config, entry.context_length, end):
        readings[session.first_position] = list(read_texts(session, texts))
    return readings


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn any error into one line: those of transformers, torch and ONNX Runtime have no common base."""
    try:
        yield
    except (UnsupportedModelError, BundleError) as error:  # ONNX Runtime may refuse a value that transformers takes
        said = str(error)
        raise error if said.startswith(name) else UnsupportedModelError(f"{name} is not supported: {said}") from None
    except (MxspecError, OSError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} is not supported: it cannot be compiled ({type(error).__name__}: {one_line(error)})"
        ) from error


def check_windows(config: PreTrainedConfig, whole: Sequence[int], twin: Sequence[int]) -> None:
    """Raise CheckFailed if a layer of the whole graph has another window than its config says.

    `twin` has the windows of the twin's graph, which was compared with transformers.
    """
    small, kinds = shrink(config), layer_kinds(config)
    sizes = {getattr(small, key): getattr(config, key) for key in WINDOWS if getattr(small, key, None)}
    expected: dict[str, set[int]] = {}
    if config.is_encoder_decoder:  # its layers are all of one kind
        kinds = kinds[:1] * len(whole)
    for layer, window in zip(layers_of_each_kind(config), twin, strict=not config.is_encoder_decoder):
        expected.setdefault(kinds[layer], set()).add(sizes.get(window, window))
    for layer, (window, kind) in enumerate(zip(whole, kinds, strict=True)):
        if window not in expected[kind]:
            raise CheckFailed(
                f"{config.model_type}: layer {layer} of the graph attends to {window or 'all'} tokens, "
                f"expected {' or '.join(str(size or 'all') for size in sorted(expected[kind]))} by its config"
            )
