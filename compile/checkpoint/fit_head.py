"""Give a draft head what it shares with its target: the tokenizer, and tables that it lacks or has copies of."""

from __future__ import annotations

import numpy as np
from torch import nn

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.compile.checkpoint.settings.architecture import decoder_layers
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.checkpoint.tensors.tensor import FileTensor, Tensor
from mxspec.compile.checkpoint.ties import same_values
from mxspec.compile.heads.eagle3 import LAYERS, OFFSETS, Eagle3Config, default_places
from mxspec.compile.heads.mtp import MtpConfig
from mxspec.formats.errors import CheckpointError, PairError

_INTEGERS = {"I64": np.int64, "I32": np.int32}
_WITHOUT_EFFECT = ("inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")  # computed, or of training
EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"


def fit_head(head: Checkpoint, target: Checkpoint) -> None:
    """Give a head what it shares with its target: the tokenizer, default layers, and tables that it lacks.

    Raises PairError for a head of another target, CheckpointError for tensors that the head has no place for: it may be
    a kind of head that is not known here.
    """
    config, of_target = head.config, target.config
    assert isinstance(config, Eagle3Config)
    if of_target.is_encoder_decoder:
        raise PairError("the draft is an EAGLE-3 head, which a target with an encoder does not support")
    for key, expected in (("target_hidden_size", of_target.hidden_size), ("vocab_size", of_target.vocab_size)):
        if (got := getattr(config, key)) != expected:
            raise PairError(
                f"{head.folder}: {key}: got {got}, but the target's is {expected}: the head belongs to another target"
            )
    layers = decoder_layers(of_target)
    places = config.hidden_state_outputs or default_places(layers)
    if not 0 <= min(places) <= max(places) < layers:
        raise PairError(
            f"{head.folder}: {LAYERS}: the head reads states that enter layers {', '.join(map(str, places))}, but the "
            f"target has layers 0 to {layers - 1}: the head belongs to another target"
        )
    config.hidden_state_outputs = places
    take_table(head, target, EMBEDDING, target.named.get_input_embeddings())
    if config.draft_vocab_size == config.vocab_size:
        take_table(head, target, LM_HEAD, target.named.get_output_embeddings())
    head.tokenizer = target.tokenizer
    known = {name for name, _ in head.named.named_parameters()}
    if unknown := sorted(name for name in head.tensors.keys() - known if not name.endswith(_WITHOUT_EFFECT)):
        raise CheckpointError(
            f"{head.folder}: tensor {unknown[0]!r} has no place in an EAGLE-3 head with the settings of its config.json"
        )


def fit_mtp(draft: Checkpoint, target: Checkpoint) -> None:
    """Give an MTP layer what it shares with its target: the tokenizer, and tables that it lacks or has copies of.

    Raises CheckpointError for missing tensors, and for those that it has no place for.
    """
    for name, module in (
        (EMBEDDING, target.named.get_input_embeddings()),
        (LM_HEAD, target.named.get_output_embeddings()),
    ):
        own = draft.tensors.get(name)
        if own is not None and same_values(own, table_of(target, module)):
            del draft.tensors[name]
        take_table(draft, target, name, module)
    draft.tokenizer = target.tokenizer
    config: MtpConfig = draft.config
    prefix = config.layer_prefix(target.config.num_hidden_layers)
    known = draft.named.state_dict().keys()
    missing = known - draft.tensors.keys()
    unknown = {name for name in draft.tensors.keys() - known if not name.endswith(_WITHOUT_EFFECT)}
    for names, what in ((missing, "is missing"), (unknown, "has no place in an MTP layer")):
        if names:
            raise CheckpointError(f"{draft.folder}: tensor {prefix}{config.published(min(names))} {what}")


def target_ids(head: Checkpoint) -> Ids:
    """The target's id of each row of the head, int64[draft vocabulary]: row i is of token i + d2t[i].

    Raises CheckpointError for a missing or invalid d2t.
    """
    rows, vocab_size = head.config.draft_vocab_size, head.config.vocab_size
    tensor = head.offsets
    if tensor is None and rows == vocab_size:
        return np.arange(rows)
    if not isinstance(tensor, FileTensor):
        raise CheckpointError(
            f"{head.folder}: tensor {OFFSETS!r} is missing, which says what the {rows} rows of the head are of "
            f"{vocab_size} tokens; expected int64[{rows}]"
        )
    where = f"tensor {OFFSETS!r} of {tensor.shard}"
    kind = _INTEGERS.get(tensor.stored.dtype)
    if kind is None or tensor.shape != (rows,):
        raise CheckpointError(
            f"{where} is {tensor.stored.dtype} {list(tensor.shape)}, expected int64[{rows}], an offset for each row"
        )
    ids: Ids = np.arange(rows) + tensor.read_bytes(0, rows).view(kind)[:, 0].astype(np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < rows:
        raise CheckpointError(
            f"{where}: expected offsets that make {rows} different ids from 0 to {vocab_size - 1}, got "
            f"{int(ids.min())} to {int(ids.max())}, {len(np.unique(ids))} different ones"
        )
    return ids


def table_of(checkpoint: Checkpoint, module: nn.Module) -> Tensor:
    """The tensor with the weight of a module of `checkpoint.named`, under whatever name."""
    model = checkpoint.named
    path = next(path for path, each in model.named_modules() if each is module)
    return checkpoint.tensors[resolve_names(model, checkpoint.tensors, [f"{path}.weight"]).tensor_of[f"{path}.weight"]]


def take_table(head: Checkpoint, target: Checkpoint, name: str, module: nn.Module | None) -> None:
    """Have the head read the target's table under its own name, if it has none itself."""
    if name in head.tensors or module is None:
        return
    tensor = table_of(target, module)
    if tensor.shape[-1] != head.config.hidden_size:
        raise PairError(
            f"{head.folder}: has no {name}, and the target's has {tensor.shape[-1]} columns where the head's has "
            f"{head.config.hidden_size}"
        )
    head.tensors[name] = tensor
