"""Check that the attention windows of a whole model's graph follow its config, as the twin's windows follow its own.

A twin has smaller windows than its model, so its agreement with transformers says nothing about the model's windows.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedConfig

from mxspec.compile.check.twin import WINDOWS, layer_kinds, layers_of_each_kind, shrink
from mxspec.formats.errors import CheckFailed


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
