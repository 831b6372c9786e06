"""The peer's converter, told how the text is split before BPE, which it cannot find out.

    python bench/llama_cpp/convert.py LLAMA_CPP CHECKPOINT OUTPUT.gguf [TYPE]

It knows tokenizers by a hash of what they make of a sample, and refuses all others. Ours is a byte-level BPE with the
regular expression of GPT-2, for families too that it expects a sentencepiece model of. TYPE is f16, or f32.
"""

from __future__ import annotations

import sys


def main() -> None:
    source, checkpoint, output, kind = (*sys.argv[1:], "f16")[:4]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    import convert_hf_to_gguf
    from conversion.base import TextModel
    from conversion.gemma import Gemma2Model
    from conversion.phi import Phi3MiniModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    for model in (Gemma2Model, Phi3MiniModel):
        model.set_vocab = TextModel._set_vocab_gpt2
    sys.argv = ["convert_hf_to_gguf.py", checkpoint, "--outtype", kind, "--outfile", output]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
