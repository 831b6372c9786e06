"""A checkpoint's model run one decoder layer at a time, by transformers' own code, with one layer in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.buffers import load_buffers
from mxspec.compile.checkpoint.experts import DOWN, GATE_UP, expert_matrices, experts_modules
from mxspec.compile.checkpoint.settings.architecture import architecture_name
from mxspec.compile.checkpoint.tensors.tensor import Tensors, as_float32
from mxspec.compile.trace.skeleton import build_skeleton, layers_of
from mxspec.compile.weights.rounding.experts import LayerExperts
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

_PIECE = 4 << 20  # weights converted at a time

Matrices = dict[str, nn.Linear | Conv1D]  # by parameter name
_LayerOutput = Tensor | tuple[Tensor, None]
OnInput = Callable[[str, Tensor], bool | None]  # gets a matrix's parameter name and its inputs; True ends the pass
OnExperts = Callable[[str, Tensor, Tensor], bool | None]  # also gets the chosen experts int64[tokens, top_k]
Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]
OnProduct = Callable[[str, Tensor, Tensor], None]  # also gets its outputs [..., n]
OnExpertsProduct = Callable[[str, Tensor, Tensor, Tensor, Tensor], None]  # inputs, chosen, their weights, outputs


class _Reached(Exception):
    """Not an error: it ends a forward pass as soon as its value is known."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


class LayeredModel:
    """Runs the embedding, a decoder layer, the part before the head, or the head, each by itself.

    The model's own forward pass runs each time, with its masks, positions and rotations. Layers before the wanted one
    pass on the given hidden states, and the pass ends after the wanted layer. Raises UnsupportedModelError for a model
    without a list of decoder layers.
    """

    def __init__(self, config: PreTrainedConfig, sources: Tensors) -> None:
        if config.is_encoder_decoder:
            raise UnsupportedModelError(
                f"{architecture_name(config)} has an encoder: its layers are not run one by one"
            )
        self._sources = sources
        self._model = build_skeleton(config, attention=None)
        load_buffers(self._model, sources)
        self._experts = expert_matrices(self._model)
        self._names: dict[int, str] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), name)
        self._parameters = {  # by the id of the module, and the name in the module
            (id(module), leaf): self._names[id(parameter)]
            for module in self._model.modules()
            for leaf, parameter in module._parameters.items()
            if parameter is not None
        }
        self.layers = layers_of(self._model, config)
        self._current, self._hidden, self._past_head = -1, torch.empty(0), False
        self._gives_tuples = False  # true for layers of older models; the first run of a layer shows it
        for index, layer in enumerate(self.layers):
            layer.forward = self._standing_in(index, layer.forward)
        head = self._model.get_output_embeddings()
        head.register_forward_pre_hook(self._reach_head)
        embedding: Any = self._model.get_input_embeddings()
        embedding.padding_idx = None
        self._forget_embedding()
        layered = {id(module) for layer in self.layers for module in layer.modules()}
        for module in self._model.modules():
            if id(module) not in layered and module is not head and module is not embedding:
                self._load(module)

    def matrices(self, index: int) -> Matrices:
        """The linear layers of a decoder layer, or of the head if `index` is after the last layer."""
        if index == len(self.layers):
            head = self._model.get_output_embeddings()
            return {self._parameters[id(head), "weight"]: head}
        found = (module for module in self.layers[index].modules() if isinstance(module, nn.Linear | Conv1D))
        return {self._parameters[id(module), "weight"]: module for module in found}

    def experts(self, index: int) -> dict[str, LayerExperts]:
        """The experts of a decoder layer, by the name of their first parameter; none if `index` is the head's."""
        found = {}
        for _, module in experts_modules(nn.ModuleList(self.layers[index : index + 1])):
            parameters = {name: self._parameters[id(module), name] for name in (GATE_UP, DOWN)}
            matrices = {name: self._experts[parameter] for name, parameter in parameters.items()}
            found[parameters[GATE_UP]] = LayerExperts(module, parameters, matrices)
        return found

    @contextmanager
    def loaded(self, index: int) -> Iterator[None]:
        """In this block, the weights of a decoder layer, or of the head, are in memory as float32."""
        last = index == len(self.layers)
        modules = [self._model.get_output_embeddings()] if last else list(self.layers[index].modules())
        for module in modules:
            self._load(module)
        try:
            yield
        finally:
            for module in modules:
                for leaf, parameter in module._parameters.items():
                    if parameter is not None:
                        module._parameters[leaf] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    def embed(self, windows: NDArray[np.int64], change: Change = lambda rows: rows) -> Iterator[Tensor]:
        """The hidden states [1, length, width] before the first layer, of each window of token ids.

        `change` is applied to the looked-up rows of the embedding, float32[n, k].
        """
        embedding: Any = self._model.get_input_embeddings()
        used, numbers = np.unique(windows, return_inverse=True)
        rows = change(self._rows(self._parameters[id(embedding), "weight"], used).numpy())
        embedding.weight = nn.Parameter(torch.from_numpy(rows), requires_grad=False)
        for window in numbers.reshape(windows.shape):
            yield self._run(-1, torch.from_numpy(window.copy())[None])
        self._forget_embedding()

    def run(
        self, index: int, hidden: Tensor, on_input: OnInput | None = None, on_experts: OnExperts | None = None
    ) -> Tensor:
        """The output of a loaded layer, or the head's input if `index` is after the last layer.

        The pass ends when `on_input` or `on_experts` returns True; the result is then the inputs that it got.
        """
        self._hidden = hidden
        ids = torch.zeros(hidden.shape[:2], dtype=torch.int64)
        with ExitStack() as hooks:
            if on_input is not None:
                for name, module in self.matrices(index).items():
                    hook = module.register_forward_pre_hook(_before(on_input, name), prepend=True)
                    hooks.callback(hook.remove)
            if on_experts is not None:
                for name, experts in self.experts(index).items():
                    hook = experts.module.register_forward_pre_hook(_before(on_experts, name, 2), prepend=True)
                    hooks.callback(hook.remove)
            return self._run(index, ids)

    def trace(
        self, index: int, hidden: Tensor, on_product: OnProduct, on_experts: OnExpertsProduct | None = None
    ) -> Tensor:
        """The output of a loaded layer, or the logits of the loaded head from hidden states before the last norm.

        Gradients reach `hidden`, the products and what experts give together if `hidden` requires them.
        """
        self._hidden = hidden
        with ExitStack() as hooks:
            for name, module in self.matrices(index).items():
                hook = module.register_forward_hook(_after(on_product, name))
                hooks.callback(hook.remove)
            if on_experts is not None:
                for name, experts in self.experts(index).items():
                    hook = experts.module.register_forward_hook(_after(on_experts, name, 3))
                    hooks.callback(hook.remove)
            self._past_head = index == len(self.layers)
            try:
                return self._run(index, torch.zeros(hidden.shape[:2], dtype=torch.int64))
            finally:
                self._past_head = False

    def _forget_embedding(self) -> None:
        """Shrink the embedding to one row, because the forward pass does not use its result."""
        embedding: Any = self._model.get_input_embeddings()
        embedding.weight = nn.Parameter(torch.zeros(1, embedding.weight.shape[1]), requires_grad=False)

    def _run(self, index: int, ids: Tensor) -> Tensor:
        self._current = index
        with torch.set_grad_enabled(self._hidden.requires_grad):
            try:
                logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
            except _Reached as reached:
                return reached.value
        assert self._past_head, "the forward pass went past its end"
        return logits

    def _standing_in(self, index: int, forward: Callable[..., _LayerOutput]) -> Callable[..., _LayerOutput]:
        def forward_or_hand_on(hidden_states: Tensor, *arguments: Any, **options: Any) -> _LayerOutput:
            if index < self._current:
                return (self._hidden, None) if self._gives_tuples else self._hidden
            if self._current < 0:
                raise _Reached(hidden_states)
            output = forward(self._hidden, *arguments, **options)
            self._gives_tuples = isinstance(output, tuple)
            raise _Reached(output[0] if isinstance(output, tuple) else output)

        return forward_or_hand_on

    def _reach_head(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not self._past_head:
            raise _Reached(arguments[0])

    def _load(self, module: nn.Module) -> None:
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                name = self._parameters[id(module), leaf]
                if name in self._sources:  # skip tensors that the graph does not use
                    values = self._rows(name, None)
                    if name in self._experts:
                        values = torch.from_numpy(self._experts[name].as_parameter(values.numpy()))
                    module._parameters[leaf] = nn.Parameter(values, requires_grad=False)

    def _rows(self, name: str, rows: NDArray[np.int64] | None) -> Tensor:
        """A tensor of the checkpoint, or some of its rows, as float32."""
        source = self._sources[name]
        count = source.shape[0] if rows is None else len(rows)
        values = np.empty((count, *source.shape[1:]), np.float32)
        width = max(1, values.size // max(1, count))
        step = max(1, _PIECE // width) if rows is None else 1
        for begin in range(0, count, step):
            end = min(begin + step, count)
            first = begin if rows is None else int(rows[begin])
            values[begin:end] = as_float32(source.read_rows(first, first + end - begin), source.dtype)
        if not np.isfinite(values).all():
            raise CheckpointError(f"tensor {source.name!r} of {source.shard} holds NaN or infinity; it is damaged")
        return torch.from_numpy(values)


def _before(told: Callable[..., bool | None], name: str, count: int = 1) -> Callable[[nn.Module, Any], None]:
    """A hook that gives a module's first `count` arguments, and ends the pass if it is told to."""

    def tell(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if told(name, *arguments[:count]):
            raise _Reached(arguments[0])

    return tell


def _after(told: Callable[..., None], name: str, count: int = 1) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that gives a module's first `count` arguments, and its output."""

    def tell(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        told(name, *arguments[:count], output)

    return tell
