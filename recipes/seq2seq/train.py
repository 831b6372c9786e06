"""Train an encoder-decoder pair: from the first line of a Python function to the skeleton of its docstring.

    python recipes/seq2seq/train.py tokenizer --work build/seq2seq
    python recipes/seq2seq/train.py target    --work build/seq2seq
    python recipes/seq2seq/train.py draft     --work build/seq2seq
    python recipes/seq2seq/train.py publish   --work build/seq2seq recipes/seq2seq
    python recipes/seq2seq/train.py held-out > sources.txt

Each command resumes where it stopped. The task has one right answer, so that exact matches can be counted. The corpus
is the standard library of the interpreter that runs this file, without the files that the demo pair holds out; half of
the examples combine parameters of different functions.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast, T5Config

from mxspec.recipes.training import Schedule, export_model, fit, library_files, read_source

T = TypeVar("T")
HELD_OUT = Path(__file__).resolve().parents[1] / "demo" / "held_out.txt"
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1 and 2, as in T5
LONGEST = 400  # characters of a source
VOCABULARY = 1024
ALIKE = 8  # steps that draw examples of similar length; this saves two thirds of the padding
MIXED = 0.5  # share of the examples whose parameters come from different functions
SCHEDULE = Schedule(batch=32, learning_rate=6e-3)


@dataclass(frozen=True, slots=True)
class EncoderDecoderSizes:
    """Sizes and schedule of one model with T5 1.1's architecture: gated GELU, an untied head."""

    hidden_size: int
    intermediate_size: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    head_size: int = 32
    schedule: Schedule = SCHEDULE

    def config(self, vocab_size: int) -> T5Config:
        return T5Config(
            vocab_size=vocab_size,
            d_model=self.hidden_size,
            d_ff=self.intermediate_size,
            d_kv=self.head_size,
            num_layers=self.encoder_layers,
            num_decoder_layers=self.decoder_layers,
            num_heads=self.heads,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=1,
        )


TARGET = EncoderDecoderSizes(128, 320, encoder_layers=3, decoder_layers=3, heads=4)
DRAFT = EncoderDecoderSizes(64, 160, encoder_layers=2, decoder_layers=1, heads=2)


# --- the task ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignatureParameter:
    """One parameter of a signature; `stars` are those before its name."""

    name: str
    annotation: str | None = None
    default: str | None = None
    stars: str = ""

    @property
    def declared(self) -> str:
        annotated = f"{self.stars}{self.name}" + (f": {self.annotation}" if self.annotation else "")
        if self.default is None:
            return annotated
        return f"{annotated} = {self.default}" if self.annotation else f"{annotated}={self.default}"

    @property
    def described(self) -> str:
        """Its line in the docstring, in Google's style, without a description."""
        kind = f" ({self.annotation})" if self.annotation else ""
        return f"    {self.stars}{self.name}{kind}:" + (f" Defaults to {self.default}." if self.default else "")


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature in the first line of a function."""

    name: str
    parameters: tuple[SignatureParameter, ...]
    returns: str | None = None

    @property
    def source(self) -> str:
        """The function's first line."""
        arguments = ", ".join(parameter.declared for parameter in self.parameters)
        return f"def {self.name}({arguments})" + (f" -> {self.returns}:" if self.returns else ":")

    @property
    def text(self) -> str:
        """The skeleton of the function's docstring."""
        described = [p.described for p in self.parameters if p.name not in ("self", "cls", "", "/")]
        lines = [f"{self.name}.", *(["", "Args:", *described] if described else [])]
        return "\n".join([*lines, *(["", f"Returns:\n    {self.returns}:"] if self.returns else [])])


def functions_of(files: Iterable[Path]) -> list[Signature]:
    """The distinct functions in these files, in order, that have a parameter to describe and a short first line."""
    found: dict[Signature, None] = {}
    for path in files:
        try:
            tree = ast.parse(read_source(path))
        except (SyntaxError, ValueError):  # Python's own tests include invalid files
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                function = read_function(node)
                if "Args:" in function.text and len(function.source) <= LONGEST and function.source.isascii():
                    found[function] = None
    return list(found)


def read_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signature:
    """Read the signature in a function's first line."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parameters = [_parameter(one, default) for one, default in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        parameters.insert(len(arguments.posonlyargs), SignatureParameter("/"))
    if arguments.vararg is not None:
        parameters.append(_parameter(arguments.vararg, None, "*"))
    elif arguments.kwonlyargs:
        parameters.append(SignatureParameter("", stars="*"))
    parameters += [_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parameters.append(_parameter(arguments.kwarg, None, "**"))
    return Signature(node.name, tuple(parameters), _written(node.returns))


def _parameter(argument: ast.arg, default: ast.expr | None, stars: str = "") -> SignatureParameter:
    return SignatureParameter(argument.arg, _written(argument.annotation), _written(default), stars)


def _written(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)


class SignatureExamples:
    """Functions to train on: those of the library, and others combined from their names and parameters."""

    def __init__(self, functions: Sequence[Signature]) -> None:
        self._functions = functions
        plain = [p for f in functions for p in f.parameters if not p.stars and p.name not in ("self", "cls", "/")]
        self._required = [p for p in plain if p.default is None]
        self._optional = [p for p in plain if p.default is not None]
        self._annotated = [p for p in plain if p.annotation is not None]
        self._returned = [f.returns for f in functions if f.returns]

    def batch(self, step: int, count: int) -> list[Signature]:
        """The examples of a step, the same in every call; `ALIKE` steps draw together and are sorted by length."""
        chance = random.Random(step // ALIKE)
        drawn = [self._mixed(chance) if chance.random() < MIXED else self._real(chance) for _ in range(ALIKE * count)]
        drawn.sort(key=lambda function: len(function.source))
        place = chance.sample(range(ALIKE), ALIKE)[step % ALIKE]
        return drawn[place * count : (place + 1) * count]

    def _real(self, chance: random.Random) -> Signature:
        return chance.choice(self._functions)

    def _mixed(self, chance: random.Random) -> Signature:
        """A function with a name, up to six parameters without a default, then some with one, in a valid order."""
        required = _drawn(chance, self._required, chance.randint(0, 4))
        optional = _drawn(chance, self._optional, chance.randint(0 if required else 1, 3))
        if chance.random() < 0.3:
            required += _drawn(chance, self._annotated, chance.randint(1, 2))
        both = [*(p for p in required if p.default is None), *(p for p in required if p.default), *optional]
        chosen = list({parameter.name: parameter for parameter in both}.values())
        first = [SignatureParameter("self")] if chance.random() < 0.5 else []
        rest = [SignatureParameter("kwargs", stars="**")] if chance.random() < 0.15 else []
        returns = _drawn(chance, self._returned, int(chance.random() < 0.2))
        made = Signature(chance.choice(self._functions).name, (*first, *chosen, *rest), returns[0] if returns else None)
        return made if len(made.source) <= LONGEST and "Args:" in made.text else self._real(chance)


def _drawn(chance: random.Random, pool: Sequence[T], count: int) -> list[T]:
    """`count` random items of a pool, or none if the pool is empty."""
    return [chance.choice(pool) for _ in range(count)] if pool else []


def held_out_functions() -> list[Signature]:
    """Functions of the held-out files that are in no other file."""
    kept, held_out = library_files(HELD_OUT)
    known = set(functions_of(kept))
    return [function for function in functions_of(held_out) if function not in known]


# --- training ---------------------------------------------------------------------------------------------------


def load_tokenizer(work: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(work / "tokenizer.json"), pad_token=PAD, eos_token=END, unk_token=UNKNOWN
    )


def make_batch(
    tokenizer: PreTrainedTokenizerFast, functions: Sequence[Signature], device: str
) -> dict[str, torch.Tensor]:
    """Padded sources, their mask, and padded labels; the loss ignores padding."""
    sources = tokenizer([f.source for f in functions], return_tensors="pt", padding=True)
    labels = tokenizer([f.text for f in functions], return_tensors="pt", padding=True).input_ids
    return {
        "input_ids": sources.input_ids.to(device),
        "attention_mask": sources.attention_mask.to(device),
        "labels": labels.masked_fill(labels == 0, -100).to(device),
    }


def exact_matches(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, functions: Sequence[Signature]) -> float:
    """The share of functions whose skeleton the model writes exactly, greedily."""
    right, device = 0, str(model.device)
    model.eval()
    for start in range(0, len(functions), 64):
        part = functions[start : start + 64]
        batch = make_batch(tokenizer, part, device)
        labels = batch.pop("labels")
        with torch.no_grad():
            written = model.generate(**batch, max_new_tokens=labels.shape[1], do_sample=False)
        texts = tokenizer.batch_decode(written, skip_special_tokens=True)
        right += sum(text == function.text for text, function in zip(texts, part, strict=True))
    model.train()
    return right / len(functions)


def train(name: str, plan: EncoderDecoderSizes, work: Path, steps: int, device: str) -> None:
    """Train a model of this plan; resumes from the last saved state."""
    tokenizer = load_tokenizer(work)
    examples, held_out = SignatureExamples(functions_of(library_files(HELD_OUT)[0])), held_out_functions()[:256]
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(plan.config(tokenizer.vocab_size)).to(device)
    # T5 draws tables so large that the optimizer would need a thousand steps to change them.
    with torch.no_grad():
        model.shared.weight.mul_(0.1)
        model.lm_head.weight.mul_(plan.hidden_size**-0.5)

    def loss(step: int) -> torch.Tensor:
        batch = make_batch(tokenizer, examples.batch(step, plan.schedule.batch), device)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):  # on a CPU float32 is as fast
            found: torch.Tensor = model(**batch, use_cache=False).loss
        return found

    def measure() -> dict[str, float]:
        return {"held_out_exact": round(exact_matches(model, tokenizer, held_out), 4)}

    fit(name, model, plan.schedule, steps=steps, work=work, loss=loss, measure=measure)


# --- commands ---------------------------------------------------------------------------------------------------


@click.group()
def main() -> None:
    """Train a pair that writes skeletons of docstrings."""


work_option = click.option(
    "--work", type=click.Path(path_type=Path), default=Path("build/seq2seq"), help="States and logs go here."
)
device_option = click.option("--device", default="cuda" if torch.cuda.is_available() else "cpu", show_default=True)


@main.command("tokenizer")
@work_option
def train_tokenizer(work: Path) -> None:
    """Train the byte-level BPE tokenizer, which ends every text as T5's does."""
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, END, UNKNOWN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_texts(functions_of(library_files(HELD_OUT)[0])), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)
    fast.save_pretrained(work)


def _texts(functions: Iterable[Signature]) -> Iterator[str]:
    for function in functions:
        yield function.source
        yield function.text


@main.command("target")
@work_option
@device_option
@click.option("--steps", default=3000, show_default=True)
def train_target(work: Path, device: str, steps: int) -> None:
    """Train the target."""
    train("target", TARGET, work, steps, device)


@main.command("draft")
@work_option
@device_option
@click.option("--steps", default=3000, show_default=True)
def train_draft(work: Path, device: str, steps: int) -> None:
    """Train the draft."""
    train("draft", DRAFT, work, steps, device)


@main.command()
@work_option
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
def publish(work: Path, destination: Path) -> None:
    """Copy both models, each with the tokenizer, to DESTINATION/target and DESTINATION/draft."""
    for name in ("target", "draft"):
        model = AutoModelForSeq2SeqLM.from_pretrained(work / name, dtype=torch.float32, local_files_only=True)
        export_model(model, destination / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (destination / name / file).write_bytes((work / file).read_bytes())


@main.command("held-out")
def print_held_out() -> None:
    """Print the first lines of the held-out functions, only for evaluation."""
    for function in held_out_functions():
        sys.stdout.write(function.source + "\n")


if __name__ == "__main__":
    main()
