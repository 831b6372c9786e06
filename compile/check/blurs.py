"""What int8 rows of products, and caches in MXINT8, do to a model's logits, and how much of that is right.

A model with either is judged in two steps. With rows in int16 and caches in float32, nearly exact, the same graph must
give the logits of transformers, as every graph (own_weights.py): what is wrong in it shows there. Then each rounding
may only blur them. The largest difference of a logit says little of that, for it is one of millions, and of a deep
model that is right it is 0.2 of the largest logit. The mean KL divergence over all tokens read tells blurred from
wrong, here for int8 rows:

    nats, of random tokens               SmolLM2-135M    demo target    a random llama of 2 layers
    right                                      0.0097         0.0004                        0.0001
    wrong in all products:
      scales 2 % too large                     0.086          0.0037                        0.0010
      scales 5 % too large                     0.35           0.021                         0.0056
      zero half a level off                    0.070          0.0025                        0.0011
      zero four levels off                     3.3            0.12                          0.054
      two of 256 columns exchanged             0.83           0.17                          0.14
      two of 32 columns exchanged              7.3            1.8                           0.25
    wrong in one product:
      zero 128 levels off                      6.7            1.8                           0.39

Rounding adds up over layers, and a wrong kernel does so faster. The arithmetic itself is what tests of the operator
compare, with float64 and between instruction sets.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mxspec.compile.check.readings import Logits, Reading
from mxspec.compile.graph.exported_graph import set_caches
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import BLURS, BlurName, ModelEntry

MOST_DIVERGENCE = 0.05  # nats; as much costs a factor of perplexity that nobody who asks for these blurs expects

_INSTEAD: dict[BlurName, str] = {"int8_rows": "--activations int16", "mxint8_caches": "--caches float16"}


def blurs_of(entry: ModelEntry) -> list[BlurName]:
    """The blurs that a model has."""
    has: dict[BlurName, bool] = {
        "int8_rows": entry.activations == "int8",
        "mxint8_caches": entry.caches == "mxint8",
    }
    return [name for name, it_has in has.items() if it_has]


@contextmanager
def without(folder: Path, entry: ModelEntry, blurs: Collection[BlurName]) -> Iterator[tuple[Path, ModelEntry]]:
    """A folder with a model's graphs without these blurs, over the same weights, and the entry for it."""
    if not blurs:
        yield folder, entry
        return
    with TemporaryDirectory(prefix="mxspec-exact-") as place:
        for weights in folder.glob("*.safetensors"):
            _link(weights, Path(place) / weights.name)
        for path in entry.graphs:
            model = ir.load(folder / path)
            if "int8_rows" in blurs:
                _with_int16_rows(model)
            if "mxint8_caches" in blurs:
                set_caches(model, "float32", entry.head_size)
            ir.save(model, Path(place) / path)
        exact = {"caches": "float32"} if "mxint8_caches" in blurs else {}
        yield Path(place), entry.model_copy(update=exact)


def _with_int16_rows(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        for name in ("activations", "down_activations"):
            node.attributes.pop(name, None)


def _link(source: Path, copy: Path) -> None:
    try:
        os.link(source, copy)
    except OSError:  # another file system
        shutil.copyfile(source, copy)


def check_divergence(blur: BlurName, divergence: float, entry: ModelEntry) -> None:
    """Raise CheckFailed unless a rounding changes a model as little as it should."""
    if divergence > MOST_DIVERGENCE:
        raise CheckFailed(
            f"{entry.graph}: {BLURS[blur]} change its distributions by a KL divergence of {divergence:.1e} "
            f"nats, expected at most {MOST_DIVERGENCE:.0e}: compile it with {_INSTEAD[blur]}"
        )


def mean_divergence(exact: Sequence[Reading], rounded: Sequence[Reading]) -> float:
    """KL(exact || rounded) in nats, the mean over all rows; infinite where logits are not numbers."""
    rows = [divergences(one.logits, other.logits) for one, other in zip(exact, rounded, strict=True)]
    mean = float(np.concatenate(rows).mean())
    return mean if np.isfinite(mean) else np.inf


def divergences(exact: Logits, rounded: Logits) -> npt.NDArray[np.float64]:
    """KL(exact || rounded) in nats of each row, float64[rows], from logits float32[rows, vocab]."""
    with np.errstate(invalid="ignore"):
        log_p, log_q = _log_softmax(exact), _log_softmax(rounded)
        return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=1))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
