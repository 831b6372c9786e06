"""The task of the encoder-decoder pair: from the first line of a Python function to the skeleton of its docstring.

It has one right answer, so exact matches can be counted. The functions are those of the standard library, without the
files that the demo pair holds out; half of the examples combine parameters of different functions.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast, T5Config

from bench.pairs.source_code import library_files, read_source

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1 and 2, as in T5
LONGEST = 400  # characters of a source
HELD_OUT_MEASURED = 256  # functions at most
ALIKE = 8  # steps that draw examples of similar length; this saves two thirds of the padding
_BEFORE_SLASH, _PLAIN = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
MIXED = 0.5  # share of the examples whose parameters come from different functions


def t5(
    width: int, inner: int, encoder_layers: int, decoder_layers: int, heads: int, vocabulary: int = 1024
) -> T5Config:
    """T5 1.1's architecture: gated GELU, an untied head."""
    return T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_ff=inner,
        d_kv=32,
        num_layers=encoder_layers,
        num_decoder_layers=decoder_layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )


class Written(str):
    """Source code, which inspect shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Function:
    """The signature in the first line of a function; annotations and defaults are `Written`."""

    name: str
    signature: Signature

    @property
    def source(self) -> str:
        """The function's first line."""
        return f"def {self.name}{self.signature}:"

    @property
    def text(self) -> str:
        """The skeleton of the function's docstring, in Google's style, without descriptions."""
        described = [_described(p) for p in self.signature.parameters.values() if p.name not in ("self", "cls")]
        returns = self.signature.return_annotation
        lines = [f"{self.name}.", *(["", "Args:", *described] if described else [])]
        return "\n".join([*lines, *([] if returns is Signature.empty else ["", f"Returns:\n    {returns}:"])])

    @property
    def is_example(self) -> bool:
        """Whether it has a parameter to describe and a short first line."""
        return "Args:" in self.text and len(self.source) <= LONGEST


def _described(parameter: Parameter) -> str:
    named = str(parameter.replace(annotation=Parameter.empty, default=Parameter.empty))  # with its stars
    kind = "" if parameter.annotation is Parameter.empty else f" ({parameter.annotation})"
    return f"    {named}{kind}:" + (
        "" if parameter.default is Parameter.empty else f" Defaults to {parameter.default}."
    )


def functions_of(files: Iterable[Path]) -> list[Function]:
    """The distinct functions in these files, in order, that are examples."""
    found: dict[Function, None] = {}
    for path in files:
        try:
            tree = ast.parse(read_source(path))
        except (SyntaxError, ValueError):  # Python's own tests include invalid files
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[read_function(node)] = None
    return [function for function in found if function.is_example and function.source.isascii()]


def read_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    """Read the signature in a function's first line."""
    own = node.args
    plain = [*((one, _BEFORE_SLASH) for one in own.posonlyargs), *((one, _PLAIN) for one in own.args)]
    defaults = [None] * (len(plain) - len(own.defaults)) + list(own.defaults)
    parameters = [
        *(_parameter(one, kind, default) for (one, kind), default in zip(plain, defaults, strict=True)),
        *([] if own.vararg is None else [_parameter(own.vararg, Parameter.VAR_POSITIONAL)]),
        *(_parameter(one, Parameter.KEYWORD_ONLY, d) for one, d in zip(own.kwonlyargs, own.kw_defaults, strict=True)),
        *([] if own.kwarg is None else [_parameter(own.kwarg, Parameter.VAR_KEYWORD)]),
    ]
    return Function(node.name, Signature(parameters, return_annotation=_written(node.returns)))


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None = None) -> Parameter:
    return Parameter(argument.arg, kind, default=_written(default), annotation=_written(argument.annotation))


def _written(node: ast.expr | None) -> Any:
    return Parameter.empty if node is None else Written(ast.unparse(node))  # the same value as Signature.empty


class FunctionExamples:
    """Functions to train on: those of the library, and others combined from their names and parameters."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions
        everywhere = [p for f in functions for p in f.signature.parameters.values() if p.name not in ("self", "cls")]
        plain = [p.replace(kind=_PLAIN) for p in everywhere if not str(p).startswith("*")]
        self._required = [p for p in plain if p.default is p.empty]
        self._optional = [p for p in plain if p.default is not p.empty]
        self._annotated = [p for p in plain if p.annotation is not p.empty] or plain
        returned = [f.signature.return_annotation for f in functions]
        self._returned = [one for one in returned if one is not Signature.empty] or returned

    def batch(self, step: int, count: int) -> list[Function]:
        """The examples of a step, the same in every call; `ALIKE` steps draw together and are sorted by length."""
        chance = random.Random(step // ALIKE)
        drawn = [
            self._mixed(chance) if chance.random() < MIXED else chance.choice(self._functions)
            for _ in range(ALIKE * count)
        ]
        drawn.sort(key=lambda function: len(function.source))
        place = chance.sample(range(ALIKE), ALIKE)[step % ALIKE]
        return drawn[place * count : (place + 1) * count]

    def _mixed(self, chance: random.Random) -> Function:
        """A function with a name, up to six parameters without a default, then some with one."""
        drawn = chance.choices(self._required, k=chance.randint(0, 4))
        drawn += chance.choices(self._optional, k=chance.randint(0 if drawn else 1, 3))
        if chance.random() < 0.3:
            drawn += chance.choices(self._annotated, k=chance.randint(1, 2))
        chosen = {parameter.name: parameter for parameter in drawn}
        ordered = sorted(chosen.values(), key=lambda parameter: parameter.default is not parameter.empty)
        if chance.random() < 0.5:
            ordered.insert(0, Parameter("self", _PLAIN))
        if chance.random() < 0.15 and "kwargs" not in chosen:
            ordered.append(Parameter("kwargs", Parameter.VAR_KEYWORD))
        returns = chance.choice(self._returned) if chance.random() < 0.2 else Signature.empty
        made = Function(chance.choice(self._functions).name, Signature(ordered, return_annotation=returns))
        return made if made.is_example else chance.choice(self._functions)


def held_out_functions() -> list[Function]:
    """Functions of the held-out files that are in no other file."""
    kept, held_out = library_files()
    known = set(functions_of(kept))
    return [function for function in functions_of(held_out) if function not in known]


class Skeletons:
    """Examples and held-out functions, with the tokenizer in the work folder."""

    special_tokens = (PAD, END, UNKNOWN)
    names_of_tokens = {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN}  # noqa: RUF012

    def __init__(self, work: Path, device: str) -> None:
        self.device = device
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(work / "tokenizer.json"), **self.names_of_tokens)
        self.examples = FunctionExamples(functions_of(library_files()[0]))
        self.held_out = held_out_functions()[:HELD_OUT_MEASURED]

    @staticmethod
    def texts() -> Iterator[str]:
        """The first lines and skeletons of the training functions."""
        return (text for function in functions_of(library_files()[0]) for text in (function.source, function.text))

    @staticmethod
    def held_out_texts() -> Iterator[str]:
        """The first lines of the held-out functions."""
        return (f"{function.source}\n" for function in held_out_functions())

    def build(self, config: T5Config) -> PreTrainedModel:
        """A model with smaller random tables than T5's, which would need a thousand steps to change."""
        model: PreTrainedModel = AutoModelForSeq2SeqLM.from_config(config)
        with torch.no_grad():
            model.shared.weight.mul_(0.1)
            model.lm_head.weight.mul_(config.d_model**-0.5)
        return model

    def loss(self, model: PreTrainedModel, step: int, batch: int) -> torch.Tensor:
        """The loss of a step's examples; padding does not count."""
        inputs = self._inputs(self.examples.batch(step, batch))
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):  # on a CPU float32 is as fast
            found: torch.Tensor = model(**inputs, use_cache=False).loss
        return found

    def _inputs(self, functions: Sequence[Function]) -> Any:
        """Padded sources, their mask, and padded labels."""
        sources, texts = ([f.source for f in functions], [f.text for f in functions])
        inputs = self.tokenizer(sources, text_target=texts, return_tensors="pt", padding=True)
        inputs["labels"] = inputs["labels"].masked_fill(inputs["labels"] == 0, -100)
        return inputs.to(self.device)

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """The share of held-out functions whose skeleton the model writes exactly, greedily."""
        right = 0
        for start in range(0, len(self.held_out), 64):
            part = self.held_out[start : start + 64]
            inputs = self._inputs(part)
            labels = inputs.pop("labels")
            written = model.generate(**inputs, max_new_tokens=labels.shape[1], do_sample=False)
            texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
            right += sum(text == function.text for text, function in zip(texts, part, strict=True))
        return {"held_out_exact": round(right / len(self.held_out), 4)}
