"""What a runtime reads beside the model, tried before anything is computed: special tokens and the chat template."""

from __future__ import annotations

from pathlib import Path

from mxspec.compile.checkpoint.settings.generation_config import read_rules, read_sampling
from mxspec.compile.checkpoint.settings.special_tokens import read_special_tokens
from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.chat import TEMPLATE, TOKENIZER_CONFIG, ChatTemplate

_NO_HASH = "0" * 64


def check_prompt_parts(folder: Path, vocab_size: int, *, is_encoder_decoder: bool) -> str | None:
    """A warning about a chat template that cannot write one message, if there is such a template.

    Raises CheckpointError for ids that the tokenizer lacks, BundleError for a template that no bundle may have.
    """
    read_special_tokens(folder, _NO_HASH, vocab_size, is_encoder_decoder=is_encoder_decoder)
    read_rules(folder, vocab_size)
    read_sampling(folder)
    files = [name for name in (TEMPLATE, TOKENIZER_CONFIG) if (folder / name).is_file()]
    template = ChatTemplate.read(folder, files, str(folder))
    try:
        if template is not None:
            template.render([{"role": "user", "content": "hello"}])
    except GenerationError as error:
        return f"a chat of one message cannot be written: {error}"
    return None
