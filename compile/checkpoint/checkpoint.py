"""A checkpoint on disk: the settings in its config.json, and the tensors of its shards."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from transformers import PreTrainedModel

from mxspec.compile.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_FILES, merge_adapter
from mxspec.compile.checkpoint.experts import chosen_experts, expert_matrices, has_experts, join_experts
from mxspec.compile.checkpoint.fetch import DESCRIPTIONS
from mxspec.compile.checkpoint.gguf.open_gguf import OpenedGguf, find_gguf, open_gguf, shards_of
from mxspec.compile.checkpoint.make_tokenizer import TOKENIZER_SOURCES, make_tokenizer
from mxspec.compile.checkpoint.names import UNTIED, is_computed, name_parameters, resolve_names
from mxspec.compile.checkpoint.settings.architecture import context_limit
from mxspec.compile.checkpoint.settings.config import CONFIG, load_config, load_mtp_config, read_settings
from mxspec.compile.checkpoint.settings.mx_config import MxLayout, take_layout
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor, rows_of_blocks
from mxspec.compile.checkpoint.tensors.pickled_shard import open_pickle
from mxspec.compile.checkpoint.tensors.tensor import DTYPE_NAMES, CheckpointTensor, Tensor, Tensors, open_shard
from mxspec.compile.checkpoint.tensors.weight_files import Watch, find_weights
from mxspec.compile.checkpoint.ties import broken_ties
from mxspec.compile.heads.eagle3 import Eagle3Config, name_head_tensors
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import TOKENIZER

MOST_BUFFER_BYTES = 1 << 30  # of tables that transformers computes when it builds a model; honest ones have some MB


class Checkpoint:
    """An open checkpoint directory: its configuration, and its tensors by name, each read once.

    Codes and scales of an MX matrix become one tensor under the name of the weight, and the configuration drops its
    settings for MX and its ties between tables that differ. An adapter's changes are applied as tensors are read.
    Without safetensors, pickled weights are read if `from_pickle` allows it. `notes` are for the user. A GGUF file, or
    a folder with a GGUF file and no other weights, is read like the checkpoint that it was made from. `offsets` is the
    d2t of an EAGLE-3 head. With `mtp` this is the checkpoint's MTP layer alone, as a draft of its own. Raises
    CheckpointError for a missing or truncated file, UnsupportedModelError for a configuration that cannot be read.
    """

    def __init__(
        self, folder: Path, adapter: Path | None = None, *, from_pickle: bool = False, mtp: bool = False
    ) -> None:
        self._files, self._watch = ExitStack(), Watch()
        try:
            self._watch.add(folder / name for name in (*DESCRIPTIONS, *TOKENIZER_SOURCES))
            if adapter is not None:
                self._watch.add(adapter / name for name in ADAPTER_FILES)
            gguf = find_gguf(folder)
            self._watch.add(() if gguf is None else shards_of(gguf))
            opened = None if gguf is None else open_gguf(gguf, self._files)
            self._open(folder, opened, adapter, from_pickle)
            if mtp:
                self._take_mtp()
        except BaseException:
            self.close()
            raise

    def _open(self, given: Path, gguf: OpenedGguf | None, adapter: Path | None, from_pickle: bool) -> None:
        self.folder = folder = given if gguf is None else gguf.folder
        self.config = load_config(folder)
        if (folder / ADAPTER_CONFIG).exists() and (adapter is None or not adapter.samefile(folder)):
            raise CheckpointError(
                f"{folder} holds an adapter ({ADAPTER_CONFIG}), which would be ignored: name {folder} as the adapter, "
                "or remove it"
            )
        layout = take_layout(self.config, folder / CONFIG)
        self.tensors: dict[str, Tensor] = {} if gguf is None else dict(gguf.tensors)
        self.notes: list[str] = [] if gguf is None else list(gguf.notes)
        self.offsets: Tensor | None = None
        if gguf is None:
            self._read_shards(from_pickle)
        if isinstance(self.config, Eagle3Config):
            self.tensors, self.offsets = name_head_tensors(self.tensors)
        if layout is not None:
            self.tensors = _join_codes(self.tensors, layout)
        if has_experts(self.tensors):
            self.tensors = join_experts(name_parameters(self.config), self.tensors)
        self._untie()
        if adapter is not None:
            self.tensors = merge_adapter(self.tensors, self.named, adapter, self._files, from_pickle)

    def _take_mtp(self) -> None:
        layers, self.config = self.config.num_hidden_layers, load_mtp_config(self.folder)
        take_layout(self.config, self.folder / CONFIG)
        self.tensors, more = self.config.name_tensors(layers, self.tensors, str(self.folder))
        self.notes = [more] if more else []
        if has_experts(self.tensors):
            self.tensors = join_experts(name_parameters(self.config), self.tensors)

    def _read_shards(self, from_pickle: bool) -> None:
        files = find_weights(self.folder, from_pickle)
        self._watch.add(self.folder / shard for shard in files.promised)
        for shard, promised in files.promised.items():
            stored = (open_pickle if files.kind.pickled else open_shard)(self.folder / shard, self._files)
            if missing := sorted(promised - stored.keys()):
                raise CheckpointError(
                    f"{self.folder / shard}: tensor {missing[0]!r} of {files.kind.index} is missing, "
                    f"one of {len(missing)} missing tensors"
                )
            if twice := sorted(stored.keys() & self.tensors.keys()):
                raise CheckpointError(f"tensor {twice[0]!r} is in {self.tensors[twice[0]].shard} and in {shard}")
            self.tensors |= stored

    @cached_property
    def tokenizer(self) -> Path:
        """Its tokenizer.json, or a temporary one made from older files, removed by close(). Raises MxspecError."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            text = make_tokenizer(self.folder, self.config)
            path = Path(self._files.enter_context(TemporaryDirectory())) / TOKENIZER
            path.write_text(text, encoding="utf-8")
            self.notes.append(f"{self.folder} has no {TOKENIZER}: made of its other files")
        return path

    @cached_property
    def named(self) -> PreTrainedModel:
        """transformers' model with names and shapes only; do not change it. Raises UnsupportedModelError."""
        return name_parameters(self.config)

    def fingerprint(self, also: str = "") -> str:
        """A SHA-256 in hexadecimal that changes when a tensor's file does, or what else is named."""
        digest = hashlib.sha256(f"{also}\n".encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.identity}\n".encode())
        return digest.hexdigest()

    def _untie(self) -> None:
        """Untie the tables in the configuration if the checkpoint has two."""
        broken = broken_ties(self.config, self.tensors)
        if broken and not self.config.is_encoder_decoder:
            self.config.tie_word_embeddings = False
        elif broken:
            setattr(self.config, UNTIED, [tie.parameter for tie in broken])
        for tie in broken if read_settings(self.folder / CONFIG).get("tie_word_embeddings", True) else ():
            self.notes.append(
                f"warning: {self.folder / CONFIG} ties {tie.tied_to.name} and {tie.tensor.name}, but they differ: both "
                "are kept, as in transformers"
            )

    def require_unchanged(self) -> None:
        """Raise CheckpointError where a file that a compile reads is another than when the checkpoint was opened."""
        self._watch.require_unchanged()

    def close(self) -> None:
        """Close the shards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _join_codes(tensors: Tensors, layout: MxLayout) -> dict[str, Tensor]:
    """Join codes and scales into matrices. Raises CheckpointError if one of the two is missing."""
    joined = dict(tensors)
    for name, codes in tensors.items():
        found = layout.codes_of(name)
        if found is None or not isinstance(codes, CheckpointTensor) or codes.dtype in DTYPE_NAMES.values():
            continue
        where = f"tensor {name!r} of {codes.shard}"
        module = found.weight.rpartition(".")[0]
        scales, format_name = joined.pop(found.scales, None), layout.format_of(module)
        if not isinstance(scales, CheckpointTensor):
            raise CheckpointError(f"{where} holds codes, but there is no tensor {found.scales!r}")
        if format_name is None:
            raise CheckpointError(f"{where} is {codes.dtype}, but quantization_config says that {module} is not MX")
        del joined[name]
        if found.weight in joined:
            raise CheckpointError(f"{where} holds codes of {found.weight!r}, which exists as well")
        if layout.in_blocks:
            codes, scales = rows_of_blocks(codes, scales)
        joined[found.weight] = MxTensor(codes, scales, format_name, layout.unpack[format_name])
    return joined


def require_complete(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a parameter without a tensor of its shape and type, and for endless tables."""
    model, config = checkpoint.named, checkpoint.folder / CONFIG
    tables = sum(buffer.numel() * buffer.itemsize for buffer in model.buffers())
    if tables > MOST_BUFFER_BYTES:
        raise CheckpointError(
            f"{config}: max_position_embeddings: {context_limit(checkpoint.config)} positions make tables of "
            f"{tables / 1e9:,.1f} GB, expected at most {MOST_BUFFER_BYTES / 1e9:.1f} GB: write the number there "
            "that the model was trained for"
        )
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters() if not is_computed(model, name)}
    experts, chosen = expert_matrices(model), chosen_experts(checkpoint.config) or 0
    if few := [matrix.experts for matrix in experts.values() if matrix.experts < chosen]:
        raise CheckpointError(
            f"{config}: {chosen} experts are chosen for a token, expected at most {few[0]}, all of them"
        )
    shapes |= {name: matrix.shape for name, matrix in experts.items()}
    tensor_of = resolve_names(model, checkpoint.tensors, shapes).tensor_of
    for name, shape in shapes.items():
        tensor = checkpoint.tensors[tensor_of[name]]
        if tensor.shape != shape:
            raise CheckpointError(
                f"tensor {tensor.name!r} of {tensor.shard} has shape {list(tensor.shape)}, but {name} is {list(shape)} "
                f"by {config}, which belongs to another checkpoint"
            )
        if isinstance(tensor, CheckpointTensor):
            tensor.read_rows(0, 1)  # raises for a type that cannot be packed
