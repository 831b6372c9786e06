"""What a model's own texts begin with: the opening of a user's turn, and first words of questions and other texts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.chat import TEMPLATE, TOKENIZER_CONFIG, ChatTemplate
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

WORDS = Path(__file__).with_name("openings.txt")
QUESTIONS = Path(__file__).with_name("questions.txt")
BETWEEN = 3  # texts of other kinds between two chats
_MARK = "What is it?"


def openings_of(folder: Path, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each opening, for the model whose tokenizer and chat template are in a folder.

    A model with a chat template begins every fourth text as a user would. A tokenizer that knows none of the words
    begins with its first token.
    """
    texts = _encoded_lines(WORDS, lambda line: encode_prompt(tokenizer, line, None)) or [[0]]
    turn = user_turn(folder, tokenizer)
    if not turn:
        return texts
    groups = (texts[first : first + BETWEEN] for first in range(0, len(texts), BETWEEN))
    return list(chain.from_iterable([turn, *group] for group in groups))


def question_openings(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of first words of users' questions, to follow user_turn(); one empty list if it knows none of them."""
    return _encoded_lines(QUESTIONS, lambda line: encode_rendered(tokenizer, line)) or [[]]


def _encoded_lines(file: Path, encode: Callable[[str], list[int]]) -> list[list[int]]:
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            found.append(encode(line))
        except GenerationError:  # the tokenizer knows other characters only
            continue
    return [ids for ids in found if ids]


def user_turn(folder: Path, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a chat up to the first question; none without a template that renders one."""
    try:
        template = chat_template(folder)
        text = "" if template is None else template.render([{"role": "user", "content": _MARK}])
        return encode_rendered(tokenizer, text[: max(0, text.find(_MARK))])
    except (BundleError, GenerationError):
        return []


def chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a checkpoint's folder, None without one. Raises BundleError for one that cannot be compiled."""
    files = [name for name in (TEMPLATE, TOKENIZER_CONFIG) if (folder / name).is_file()]
    return ChatTemplate.read(folder, files, str(folder))
