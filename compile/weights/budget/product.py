"""The products for which formats are chosen, their allowed formats, and the manifest's entry for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.plan import ModelPlan
from mxspec.compile.weights.budget.choose import Option, Options
from mxspec.formats.manifest import ProductEntry
from mxspec.formats.weight_format import packed_shape, weight_format


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices that share a format, because the graph stacks them into one product; n and k by parameter name.

    A `fixed` format comes from the user's patterns. `formats` lists the allowed formats.
    """

    name: str
    matrices: Mapping[str, tuple[int, int]]
    formats: tuple[str, ...]
    fixed: bool

    @property
    def weights(self) -> int:
        return sum(n * k for n, k in self.matrices.values())

    def bytes(self, format_name: str) -> int:
        """The product's bytes in a format, including tiles and scales."""
        return sum(math.prod(packed_shape(format_name, n, k)) for n, k in self.matrices.values())

    def options(self, losses: Mapping[str, Mapping[str, float]]) -> Options:
        """Bytes and loss in each of its formats, from the losses of its matrices.

        A product outside the decoder layers, whose loss was not measured, has only the largest format.
        """
        if not all(name in losses for name in self.matrices):
            largest = largest_format(self.formats)
            return {largest: Option(self.bytes(largest), 0.0)}
        return {
            kind: Option(self.bytes(kind), sum(losses[name][kind] for name in self.matrices)) for kind in self.formats
        }


def largest_format(formats: tuple[str, ...]) -> str:
    """The format with the most bits a weight."""
    return max(formats, key=lambda name: weight_format(name).bits_a_weight)


def list_products(plan: ModelPlan, allowed: tuple[str, ...], fixed_format: Callable[[str], str]) -> list[Product]:
    """The products of a model; `fixed_format` gives a parameter's format by patterns, or "" if none matches."""
    specs = [spec for spec in plan.exported.weights if spec.kind == "matmul"]
    return [product for spec in specs for product in _split(plan, spec, allowed, fixed_format)]


def _split(
    plan: ModelPlan, spec: WeightSpec, allowed: tuple[str, ...], fixed_format: Callable[[str], str]
) -> Iterator[Product]:
    """One product, or one for each format if patterns fix some of its matrices."""
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for parameter in spec.sources:
        shape = plan.sources[parameter].shape
        n = shape[1] if spec.transpose else shape[0]
        groups.setdefault(fixed_format(parameter), {})[parameter] = (n, spec.shape[1])
    for kind, matrices in groups.items():
        name = spec.name if len(groups) == 1 else "+".join(matrices)
        yield Product(name, matrices, (kind,) if kind else allowed, bool(kind))


def product_entry(product: Product, options: Options, chosen: str) -> ProductEntry:
    """The manifest's entry for a product."""
    largest = max(options.values(), key=lambda option: (option.bytes, -option.loss))
    smallest = min(options.values(), key=lambda option: (option.bytes, option.loss))
    saved = largest.bytes - smallest.bytes
    return ProductEntry(
        name=product.name,
        format=chosen,
        fixed=product.fixed,
        bytes=options[chosen].bytes,
        saved_bytes=largest.bytes - options[chosen].bytes,
        loss=options[chosen].loss,
        loss_a_byte=max(0.0, smallest.loss - largest.loss) / saved if saved else 0.0,
        losses={name: option.loss for name, option in options.items()},
    )
