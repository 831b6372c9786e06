"""Chats that keep their ids: what was generated is a prefix of the next prompt, whatever ids the text would have."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.runtime.text.conversation import Conversation
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.text.tokenizer import encode_rendered

from .chat_templates import SPECIAL, TEMPLATES, bundle_of

TEXT = (
    "Hello there. How are you today? I am fine, thank you; the weather is good.\n\n[INST] [/INST] user assistant model "
)
MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
MARKS += ["<start_of_turn>", "<end_of_turn>"]
ENDS = {"chatml": "<|im_end|>", "qwen": "<|im_end|>", "llama-3": "<|eot_id|>", "mistral": "</s>", "llama-2": "</s>"}
ENDS |= {"gemma": "<end_of_turn>", "thinking": "<|im_end|>"}


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens(MARKS)
    return tokenizer


def byte_fallback(spaces: normalizers.Normalizer | pre_tokenizers.PreTokenizer) -> Tokenizer:
    """As Llama 2 has it (the normalizer puts a space before each piece), or as newer ones do (Metaspace)."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator([TEXT] * 3, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *learner.get_vocab()]
    merges = [tuple(merge) for merge in __import__("json").loads(learner.to_str())["model"]["merges"]]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    if isinstance(spaces, normalizers.Normalizer):
        tokenizer.normalizer = spaces
    else:
        tokenizer.pre_tokenizer = spaces
    tokenizer.add_special_tokens(MARKS)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "llama-2": lambda: byte_fallback(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "metaspace": lambda: byte_fallback(pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def template_of(folder: Path, name: str) -> ChatTemplate:
    return ChatTemplate.required(bundle_of(folder, SPECIAL, TEMPLATES[name]))


def shown(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> str:
    text = TextStream(tokenizer, prompt)
    return "".join(text.push(token) for token in ids) + text.finish()


def in_letters(tokenizer: Tokenizer, text: str, rng: random.Random) -> list[int]:
    """Ids of a text as sampling may give them: in pieces that are shorter than they need to be."""
    vocab = tokenizer.get_vocab()
    ids: list[int] = []
    for token in encode_rendered(tokenizer, text):
        name = tokenizer.id_to_token(token)
        apart = [vocab.get(letter) for letter in name]
        ids += [token] if None in apart or rng.random() < 0.3 else [each for each in apart if each is not None]
    return ids


@pytest.mark.parametrize("name", ENDS)
def test_the_ids_of_a_turn_begin_the_next_one(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """Three turns, answers that end and answers that were cut, in ids that encoding their text does not give."""
    rng = random.Random(name)
    end = tokenizer.token_to_id(ENDS[name])
    encoded_again = 0
    for _ in range(20):
        chat = Conversation(template_of(tmp_path, name), tokenizer)
        so_far: list[int] = []
        for turn in range(3):
            prompt = chat.prompt_for(f"How are you {turn}?")
            assert prompt[: len(so_far)] == so_far
            rendered = chat._template.render([*chat.messages, {"role": "user", "content": f"How are you {turn}?"}])
            encoded_again += turn > 0 and encode_rendered(tokenizer, rendered)[: len(so_far)] != so_far
            body = in_letters(tokenizer, rng.choice(["I am fine", " Good.", "the é 🙂 weather", "Hello\n", ""]), rng)
            answer = [*body, end] if rng.random() < 0.7 else body
            chat.add_answer(answer, shown(tokenizer, prompt, answer))
            so_far = [*prompt, *answer]
            assert chat.as_dict()["token_ids"] == so_far
    assert encoded_again > 20  # or this test shows nothing


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("ended", [True, False])
def test_the_rest_is_encoded_as_within_the_whole(tmp_path: Path, tokenizer: Tokenizer, name: str, ended: bool) -> None:
    """An answer in the very ids that the whole text gives it makes the next prompt the encoding of the whole."""
    if not ended and name in ("mistral", "llama-2"):
        pytest.skip("what follows a cut answer there is no special token, which alone cuts a text for every tokenizer")
    chat = Conversation(template_of(tmp_path, name), tokenizer)
    prompt = chat.prompt_for("How are you?")
    answer = "Hello there. I am fine é"
    messages = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": answer}]
    whole = encode_rendered(tokenizer, chat._template.render(messages, add_generation_prompt=False))
    end = whole.index(tokenizer.token_to_id(ENDS[name]), len(prompt))
    assert whole[: len(prompt)] == prompt
    ids = whole[len(prompt) : end + ended]
    chat.add_answer(ids, shown(tokenizer, prompt, ids))
    messages.append({"role": "user", "content": "Thank you"})
    assert chat.prompt_for("Thank you") == encode_rendered(tokenizer, chat._template.render(messages))


def test_a_cut_answer_gets_the_end_that_the_template_writes(tmp_path: Path) -> None:
    tokenizer = byte_level()
    chat = Conversation(template_of(tmp_path, "chatml"), tokenizer)
    prompt = chat.prompt_for("How?")
    ids = in_letters(tokenizer, "I am", random.Random(0))
    chat.add_answer(ids, "I am")
    rest = encode_rendered(tokenizer, "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert chat.prompt_for("Why?") == [*prompt, *ids, *rest]


def test_an_end_that_the_template_does_not_write_is_left_out(tmp_path: Path) -> None:
    """Models of one tokenizer end with </s> where the template says <|im_end|>."""
    tokenizer = byte_level()
    chat = Conversation(template_of(tmp_path, "chatml"), tokenizer)
    prompt = chat.prompt_for("How?")
    chat.add_answer([*encode_rendered(tokenizer, "Fine"), tokenizer.token_to_id("</s>")], "Fine")
    following = chat.prompt_for("Why?")
    assert tokenizer.token_to_id("</s>") not in following
    assert tokenizer.decode(following, skip_special_tokens=False) == chat._template.render(
        [*chat.messages, {"role": "user", "content": "Why?"}]
    )
    assert following[: len(prompt)] == prompt


def test_an_end_whose_text_was_shown(tmp_path: Path) -> None:
    """Where the end is no special token its text is part of the answer, and not of the message."""
    tokenizer = byte_level()
    tokenizer.add_tokens(["<|over|>"])
    over = tokenizer.token_to_id("<|over|>")
    template = "{% for m in messages %}{{ m.content }}<|over|>{% endfor %}"
    chat = Conversation(ChatTemplate.required(bundle_of(tmp_path, SPECIAL, template)), tokenizer, eos_token_ids=[over])
    prompt = chat.prompt_for("How?")
    answer = [*encode_rendered(tokenizer, "Fine"), over]
    chat.add_answer(answer, "Fine<|over|>")
    assert chat.messages[-1] == {"role": "assistant", "content": "Fine"}
    assert chat.prompt_for("Why?") == [*prompt, *answer, *encode_rendered(tokenizer, "Why?"), over]


def test_ids_after_a_stop_string_are_not_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(50):
        chat = Conversation(template_of(tmp_path, "chatml"), tokenizer)
        prompt = chat.prompt_for("How?")
        ids = in_letters(tokenizer, "I am fine 🙂 today? Good", rng)
        stream = TextStream(tokenizer, prompt, stop=[rng.choice(["day", "?", " fine", "🙂", "I"])])
        pieces = []
        for token in ids:
            pieces.append(stream.push(token))
            if stream.stop is not None:
                break
        answer = "".join(pieces)
        chat.add_answer(ids[: len(pieces)], answer)
        following = chat.prompt_for("Why?")
        text = tokenizer.decode(following, skip_special_tokens=False)
        assert f"assistant\n{answer}<|im_end|>" in text.replace("<|im_end|> ", "<|im_end|>").replace("> ", ">")
        assert following[: len(prompt)] == prompt


@pytest.mark.parametrize("text", ["  I am fine  ", "I am fine"])
def test_white_space_around_an_answer_changes_no_ids(tmp_path: Path, text: str) -> None:
    tokenizer = byte_level()
    chat = Conversation(template_of(tmp_path, "chatml"), tokenizer)
    prompt = chat.prompt_for("How?")
    ids = in_letters(tokenizer, " I am fine \n", random.Random(0))
    chat.add_answer(ids, text)
    assert chat.prompt_for("Why?")[: len(prompt) + len(ids)] == prompt + ids


def test_an_answer_that_is_not_the_text_of_its_ids_is_encoded(tmp_path: Path) -> None:
    tokenizer = byte_level()
    chat = Conversation(template_of(tmp_path, "chatml"), tokenizer)
    chat.prompt_for("How?")
    chat.add_answer(encode_rendered(tokenizer, "I am fine"), "I was fine")
    rendered = chat._template.render([*chat.messages, {"role": "user", "content": "Why?"}])
    assert chat.prompt_for("Why?") == encode_rendered(tokenizer, rendered)


def test_a_template_that_changes_history_is_encoded_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    chat = Conversation(template_of(tmp_path, "thinking"), tokenizer)
    prompt = chat.prompt_for("How?")
    answer = in_letters(tokenizer, "<think>hm</think>\n\nFine", random.Random(0))
    chat.add_answer(answer, shown(tokenizer, prompt, answer))
    rendered = chat._template.render([*chat.messages, {"role": "user", "content": "Why?"}])
    assert "hm" not in rendered
    assert chat.prompt_for("Why?") == encode_rendered(tokenizer, rendered)


def test_a_prompt_without_an_answer_leaves_nothing(tmp_path: Path) -> None:
    chat = Conversation(template_of(tmp_path, "mistral"), byte_level())
    first = chat.prompt_for("How?")
    assert chat.prompt_for("How?") == first  # two messages of the user would not alternate
    chat.add_answer([], "")
    assert [message["content"] for message in chat.messages] == ["How?", ""]
    assert chat.prompt_for("Why?")[: len(first)] == first


def test_reset_system_and_saved_conversations(tmp_path: Path) -> None:
    tokenizer = byte_level()
    chat = Conversation(template_of(tmp_path, "chatml"), tokenizer, system="Be brief.")
    assert chat.as_dict() == {"messages": [{"role": "system", "content": "Be brief."}], "token_ids": []}
    prompt = chat.prompt_for("How?")
    assert tokenizer.decode(prompt, skip_special_tokens=False).startswith("<|im_start|>system\nBe brief.<|im_end|>")
    answer = encode_rendered(tokenizer, "x")
    chat.add_answer(answer, "x")
    chat.set_system("Be crisp.")
    messages = [
        {"role": "system", "content": "Be crisp."},
        {"role": "user", "content": "How?"},
        {"role": "assistant", "content": "x"},
    ]
    assert chat.as_dict() == {"messages": messages, "token_ids": [*prompt, *answer]}
    rendered = chat._template.render([*messages, {"role": "user", "content": "Why?"}])
    assert chat.prompt_for("Why?") == encode_rendered(tokenizer, rendered)
    chat.reset()
    chat.set_system(None)
    assert chat.as_dict() == {"messages": [], "token_ids": []}
    assert len(chat.prompt_for("How?")) < len(prompt)


def test_a_system_that_the_template_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="System role not supported"):
        Conversation(template_of(tmp_path, "gemma"), byte_level(), system="Be brief.")
    chat = Conversation(template_of(tmp_path, "gemma"), byte_level())
    with pytest.raises(GenerationError, match="System role not supported"):
        chat.set_system("Be brief.")
    assert chat.messages == []
    chat.prompt_for("How?")
