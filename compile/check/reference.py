"""The oracle for compiled graphs: transformers' own forward of a text, in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.check.readings import Logits, Reading, Text
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import in_text_half, rename
from mxspec.compile.checkpoint.settings.architecture import rope_switch
from mxspec.compile.checkpoint.settings.config import one_line
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.checkpoint.tensors.tensor import DTYPE_NAMES, read_whole
from mxspec.compile.heads.head import StatesHead
from mxspec.compile.quiet import quiet_transformers
from mxspec.compile.trace.skeleton import layers_of
from mxspec.formats.errors import CheckpointError
from mxspec.runtime.models.states import stand_in_states

Oracle = Callable[[Reading], Logits]  # logits of the reading's whole text


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of logits, as a share of the text's largest logit, and the way of reading that showed it."""

    error: float = 0.0
    way: str = ""


def load_reference(checkpoint: Checkpoint, config: PreTrainedConfig) -> PreTrainedModel:
    """transformers' model of a checkpoint in float32, with its plainest attention that is right.

    Values come from the checkpoint as read here: merged, unpacked or out of a pickle. transformers itself assigns
    tensors to parameters and ties them. Raises CheckpointError if transformers cannot load the checkpoint.
    """
    attention = "sdpa" if config.model_type == "falcon" and config.alibi else "eager"  # eager adds its ALiBi twice
    values = {name: torch.from_numpy(value) for name, value in _values(checkpoint)}
    with quiet_transformers():
        try:
            model: PreTrainedModel = type(checkpoint.named).from_pretrained(
                None,
                config=copy.deepcopy(config),  # transformers writes the attention's name into the config
                state_dict=values,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
            )
        except Exception as error:  # theirs have no base
            raise CheckpointError(f"{checkpoint.folder}: transformers cannot load it: {one_line(error)}") from error
    return model.eval()


def _values(checkpoint: Checkpoint) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The checkpoint's tensors with the names and shapes that transformers loads."""
    model = checkpoint.named
    matrices = expert_matrices(model)
    found, _ = rename(model, list(checkpoint.tensors)) if matrices else ({}, {})
    parameter_of = {tensor: parameter for parameter, tensor in found.items()}
    for name, tensor in checkpoint.tensors.items():
        if tensor.dtype not in DTYPE_NAMES.values():
            continue
        matrix = matrices.get(parameter_of.get(name, ""))
        values = read_whole(tensor)
        yield in_text_half(name), values if matrix is None else matrix.as_parameter(values)


def oracle(model: PreTrainedModel, first_position: int) -> Oracle:
    """Logits after each token of a text that begins at a position: one forward without a cache, memoised."""
    known: dict[tuple[Text, Text], Logits] = {}

    def logits(reading: Reading) -> Logits:
        key = reading.text, reading.source
        if key not in known:
            known[key] = forward(model, reading.text, first_position, reading.source)
        return known[key]

    return logits


def forward(model: PreTrainedModel, text: Text, first_position: int, source: Text = ()) -> Logits:
    """float32[tokens, vocab], logits after each token of a text that begins at a position.

    A model with an encoder reads the `source`; its texts begin at 0. A draft that reads hidden states gets those of
    the runtime's checks.
    """
    positions = torch.arange(first_position, first_position + len(text))
    with torch.no_grad():
        if isinstance(model, StatesHead):
            states = stand_in_states(model.config.states_size, 0, len(text))
            g = model.project(torch.from_numpy(states))
            outputs = model(torch.tensor([text]), g[None], positions[None])
        elif source:
            assert first_position == 0
            outputs = model(torch.tensor([source]), decoder_input_ids=torch.tensor([text]), use_cache=False)
        else:
            outputs = model(torch.tensor([text]), position_ids=positions[None], use_cache=False)
    logits: Logits = outputs.logits[0].numpy()
    return logits


def largest_difference(readings: Iterable[Reading], expected: Oracle, tokens: Ids | None = None) -> Difference:
    """The largest difference of all rows; infinite if logits are not finite or have another shape.

    With `tokens` int64[n] the readings have the logits of these alone.
    """
    found = (Difference(float(errors.max()), way) for errors, way in _row_errors(readings, expected, tokens))
    return max(found, key=lambda difference: difference.error, default=Difference())


def median_difference(readings: Iterable[Reading], expected: Oracle, tokens: Ids | None = None) -> Difference:
    """As `largest_difference`, but the median over all rows.

    For mixtures of experts: where two experts are nearly as good, a difference in the last bits chooses the other one,
    and its row and those after it differ by more than arithmetic explains.
    """
    errors = np.concatenate([errors for errors, _ in _row_errors(readings, expected, tokens)])
    return Difference(float(np.median(errors)), "the median of all rows")


def _row_errors(
    readings: Iterable[Reading], expected: Oracle, tokens: Ids | None
) -> Iterator[tuple[NDArray[np.float64], str]]:
    """The error of each row of a reading, and the reading's way."""
    for reading in readings:
        whole = expected(reading)
        rows = whole[reading.first : reading.first + len(reading.logits)]
        rows = rows if tokens is None else rows[:, tokens]
        if reading.logits.shape != rows.shape:
            yield np.full(1, np.inf), reading.way
            continue
        with np.errstate(invalid="ignore"):
            errors = np.abs(reading.logits - rows).max(axis=1).astype(np.float64) / np.abs(whole).max()
        yield np.where(np.isfinite(errors), errors, np.inf), reading.way


def states_difference(
    model: PreTrainedModel, readings: Iterable[Reading], first_position: int, places: Sequence[int]
) -> Difference:
    """The largest difference of hidden states at `places` (trace/decoder.py), as a share of the largest in a text.

    `readings` are of a text at a position whose graph gives them; transformers' own are those of its forward.
    """
    worst, known = Difference(), dict[Text, Logits]()
    for reading in readings:
        if reading.text not in known:
            states = _states(model, reading.text, first_position)
            known[reading.text] = torch.cat([states[place] for place in places], dim=-1)[0].numpy()
        whole = known[reading.text]
        assert reading.states is not None
        rows = whole[reading.first : reading.first + len(reading.states)]
        error = float(np.abs(reading.states - rows).max() / np.abs(whole).max())
        worst = max(worst, Difference(error, f"hidden states, {reading.way}"), key=lambda d: d.error)
    return worst


def _states(model: PreTrainedModel, text: Text, first_position: int) -> list[torch.Tensor]:
    """transformers' hidden states at all places, float32[1, tokens, hidden] each."""
    positions = torch.arange(first_position, first_position + len(text))[None]
    left: list[torch.Tensor] = []  # what leaves the last layer
    *_, last = layers_of(model, model.config)
    hook = last.register_forward_hook(lambda module, given, result: left.append(result))
    with torch.no_grad():
        outputs = model(torch.tensor([text]), position_ids=positions, use_cache=False, output_hidden_states=True)
    hook.remove()
    *entered, normed = outputs.hidden_states
    return [*entered, *left, normed]


def pad_of(config: PreTrainedConfig) -> int | None:
    """The id that an encoder-decoder may treat as padding anywhere, so texts avoid it."""
    return config.pad_token_id if config.is_encoder_decoder else None


def first_positions(config: PreTrainedConfig, context_length: int, end: int) -> set[int]:
    """The positions at which transformers can read texts as well: the beginning of the context, and its `end`.

    Where the compiled context chooses the rotary frequencies, only texts that end there can be compared.
    """
    if config.is_encoder_decoder:  # its decoder takes no positions
        return {0}
    return {0, end} if reads_alike_anywhere(config, context_length) else {end}


def reads_alike_anywhere(config: PreTrainedConfig, context_length: int) -> bool:
    """Whether transformers computes positions in a short text as in the longest."""
    switch = rope_switch(config)
    return switch is None or context_length <= switch
