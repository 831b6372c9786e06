"""Whether a checkpoint is what its config.json promises, by names and shapes alone, before anything is computed."""

from __future__ import annotations

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import chosen_experts, expert_matrices
from mxspec.compile.checkpoint.names import is_computed, resolve_names
from mxspec.compile.checkpoint.settings.architecture import context_limit
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.tensors.tensor import CheckpointTensor
from mxspec.formats.errors import CheckpointError

MOST_BUFFER_BYTES = 1 << 30  # of tables that transformers computes when it builds a model; honest ones have some MB


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
