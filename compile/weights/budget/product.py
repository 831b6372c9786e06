"""The products for which formats are chosen, their allowed formats, and the manifest's entry for each.

The experts of a layer are one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.weights.budget.choose import Option, Options
from mxspec.formats.manifest import ProductEntry
from mxspec.formats.weight_format import packed_shape, weight_format


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices that share a format: n and k by parameter name.

    The graph stacks them into one product, or they belong to the experts of a layer. A `fixed` format comes from the
    user's patterns, or is that of a router. `formats` lists the allowed formats.
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
    """The products of a model; `fixed_format` gives a parameter's format if it is not to be chosen, or ""."""
    experts = plan.exported.experts
    stacked: dict[str, list[WeightSpec]] = {}
    for spec in plan.exported.weights:
        if spec.kind == "matmul":
            name = spec.name if experts is None else experts.product_of(spec.name)
            stacked.setdefault(name, []).append(spec)
    return [product for name, specs in stacked.items() for product in _split(name, specs, plan, allowed, fixed_format)]


def _split(
    name: str, specs: Sequence[WeightSpec], plan: ModelPlan, allowed: tuple[str, ...], fixed: Callable[[str], str]
) -> Iterator[Product]:
    """One product, or one for each format if some of its matrices have a fixed one."""
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for spec in specs:
        for parameter in spec.sources:
            shape = plan.sources[parameter].shape
            n = shape[1] if spec.transpose else shape[0]
            groups.setdefault(fixed(parameter), {})[parameter] = (n, spec.shape[1])
    for kind, matrices in groups.items():
        yield Product(
            name if len(groups) == 1 else "+".join(matrices), matrices, (kind,) if kind else allowed, bool(kind)
        )


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
