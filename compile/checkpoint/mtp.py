"""The MTP layer of a checkpoint as a draft of its own: its tensors by their names in our module, and its target's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mxspec.compile.checkpoint.eagle3 import EMBEDDING, HEAD, table_of, take_table
from mxspec.compile.checkpoint.tensors.tensor import Tensor, Tensors
from mxspec.compile.checkpoint.ties import same_values
from mxspec.compile.heads.mtp_config import Glm4MoeMtpConfig, MimoMtpConfig, MtpConfig
from mxspec.formats.errors import CheckpointError

if TYPE_CHECKING:
    from mxspec.compile.checkpoint.checkpoint import Checkpoint

_BLOCK = "layers.0.block."  # of all that a decoder layer has
_WITHOUT_EFFECT = "inv_freq"  # computed


@dataclass(frozen=True, slots=True)
class _Form:
    """Where a family's checkpoints have the layers, by number, and what they call parts that are no decoder layer's."""

    prefix: str
    names: Mapping[str, str]

    def ours(self, published: str) -> str:
        """The name in our module of a tensor of a layer, without the prefix."""
        part = next((part for part in self.names if published.startswith(f"{part}.")), None)
        return _BLOCK + published if part is None else self.names[part] + published.removeprefix(part)

    def published(self, ours: str) -> str:
        """The reverse of `ours`."""
        if ours.startswith(_BLOCK):
            return ours.removeprefix(_BLOCK)
        part = next(part for part, name in self.names.items() if ours.startswith(f"{name}."))
        return part + ours.removeprefix(self.names[part])


_FORMS: dict[type[MtpConfig], _Form] = {
    MimoMtpConfig: _Form(
        "model.mtp_layers.",
        {
            "token_layernorm": "layers.0.token_norm",
            "hidden_layernorm": "layers.0.hidden_norm",
            "input_proj": "layers.0.projection",
            "final_layernorm": "norm",
        },
    ),
    Glm4MoeMtpConfig: _Form(
        "model.layers.",
        {
            "enorm": "layers.0.token_norm",
            "hnorm": "layers.0.hidden_norm",
            "eh_proj": "layers.0.projection",
            "embed_tokens": "embed_tokens",
            "shared_head.norm": "norm",
            "shared_head.head": "lm_head",
        },
    ),
}


def name_mtp_tensors(
    config: MtpConfig, layers: int, tensors: Tensors, where: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of the first MTP layer under the names of our module, and notes for the user.

    The target itself has `layers` layers. Raises CheckpointError if it has no such layer.
    """
    form, first = _FORMS[type(config)], _first(config, layers)
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := re.match(rf"{re.escape(form.prefix)}(\d+)\.", name)) and (number := int(match[1])) >= first:
            found.setdefault(number, {})[form.ours(name[match.end() :])] = tensor
    if first not in found:
        raise CheckpointError(
            f"{where}: no tensors {form.prefix}{first}.*: the checkpoint has no layer for --draft mtp, though its "
            "config.json promises one"
        )
    more = f"{where} has {len(found)} MTP layers: the draft is the first of them"
    return found[first], [more] if len(found) > 1 else []


def fit_mtp(draft: Checkpoint, target: Checkpoint) -> None:
    """Give an MTP layer what it shares with its target: the tokenizer, and tables that it lacks or has copies of.

    Raises CheckpointError for missing tensors, and for those that it has no place for.
    """
    for name, module in (
        (EMBEDDING, target.named.get_input_embeddings()),
        (HEAD, target.named.get_output_embeddings()),
    ):
        own = draft.tensors.get(name)
        if own is not None and same_values(own, table_of(target, module)):
            del draft.tensors[name]
        take_table(draft, target, name, module)
    draft.tokenizer = target.tokenizer
    form, first = _FORMS[type(draft.config)], _first(draft.config, target.config.num_hidden_layers)
    known = draft.named.state_dict().keys()
    missing = known - draft.tensors.keys()
    unknown = {name for name in draft.tensors.keys() - known if not name.endswith(_WITHOUT_EFFECT)}
    for names, what in ((missing, "is missing"), (unknown, "has no place in an MTP layer")):
        if names:
            raise CheckpointError(f"{draft.folder}: tensor {form.prefix}{first}.{form.published(min(names))} {what}")


def _first(config: MtpConfig, layers: int) -> int:
    """The number of the first MTP layer: MiMo's are numbered from 0, GLM's go on after the target's."""
    return 0 if isinstance(config, MimoMtpConfig) else layers
