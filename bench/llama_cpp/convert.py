"""The peer's converter with the one thing said that it cannot find out: how the text is cut before BPE.

    python bench/llama_cpp/convert.py LLAMA_CPP CHECKPOINT OUTPUT.gguf

It knows tokenizers by a hash of what they make of a sample, and refuses all others. Ours is a byte-level BPE with the
regular expression of GPT-2.
"""

from __future__ import annotations

import sys


def main() -> None:
    source, checkpoint, output = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    import convert_hf_to_gguf
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", checkpoint, "--outtype", "f16", "--outfile", output]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
