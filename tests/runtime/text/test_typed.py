"""Control tokens that are typed in a chat: plain text if so asked, for every template and kind of tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.chat import ChatTemplate
from mxspec.runtime.text.conversation import Conversation
from mxspec.runtime.text.tokenizer import encode_prompt, encode_rendered

from .chat_templates import SPECIAL, TEMPLATES, bundle_of
from .test_conversation import MARKS, TOKENIZERS, template_of

LETTERS = [*map(chr, range(32, 127)), "\n", "▁"]


def unigram() -> Tokenizer:
    """Its vocabulary holds the control tokens themselves, as sentencepiece's do."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((text, -1.0) for text in [*MARKS, *LETTERS])], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", *MARKS])
    return tokenizer


def merging() -> Tokenizer:
    """Its merges make </s> and <s> of letters; a word of the vocabulary is taken whole."""
    words = ["<unk>", *LETTERS, "s>", "/s>", *MARKS]
    merges = [("s", ">"), ("/", "s>"), ("<", "/s>"), ("<", "s>")]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", ignore_merges=True))
    tokenizer.add_special_tokens(["<unk>", *MARKS])
    return tokenizer


def lowering() -> Tokenizer:
    """Control tokens that are looked for after the text was made small, and that take the white space around them."""
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(["<unk>", *LETTERS])}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens([AddedToken(mark, normalized=True, lstrip=True, rstrip=True) for mark in MARKS])
    return tokenizer


ALL: dict[str, Callable[[], Tokenizer]] = {**TOKENIZERS, "unigram": unigram, "merging": merging, "lowering": lowering}
CHATS = [name for name in TEMPLATES if name != "everything"]


@pytest.fixture(scope="module", params=ALL)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return ALL[request.param]()


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token for token in ids if tokenizer.get_added_tokens_decoder().get(token) and token]


def ids_of(template: ChatTemplate, tokenizer: Tokenizer, *contents: str) -> list[int]:
    roles = ("user", "assistant")
    chat = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return encode_rendered(*template.spelled(tokenizer, template.render(chat)))


@pytest.mark.parametrize("name", CHATS)
def test_what_is_typed_is_text(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """As many control tokens as in the same chat without them, and the same text; by default they are more."""
    plain = template_of(tmp_path, name)
    kept = plain.keeping_typed(tokenizer)
    rng = random.Random(name)
    own = controls(tokenizer, ids_of(plain, tokenizer, "hi", "ho", "hi"))
    for _ in range(20):
        typed = [f"h{''.join(rng.choices([*MARKS, 'x', ' ', 'é'], k=4))}{rng.choice(MARKS)}i" for _ in range(3)]
        ids = ids_of(kept, tokenizer, *typed)
        assert controls(tokenizer, ids) == own
        assert len(controls(tokenizer, ids_of(plain, tokenizer, *typed))) > len(own)


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_without_them_is_encoded_as_ever(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    plain = template_of(tmp_path, name)
    kept = plain.keeping_typed(tokenizer)
    for chat in (
        ["hi"],
        [" 1 < 2 > 0 ", " s> ", "<|"],
        ["</think>a|>", "[", "\n"],
        [">", "<think>x</think>\n\ny", "é<"],
    ):
        assert ids_of(kept, tokenizer, *chat) == ids_of(plain, tokenizer, *chat)


def test_the_text_is_what_was_typed(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["byte-level"]()
    kept = template_of(tmp_path, "chatml").keeping_typed(tokenizer)
    ids = ids_of(kept, tokenizer, "What is <|im_end|>?")
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\nWhat is <|im_end|>?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1


@pytest.mark.parametrize("cut", range(1, len("<|im_end|>")))
def test_neighbours_make_no_control_token(tmp_path: Path, cut: int) -> None:
    """Two parts of a content, and a content between two texts of the template."""
    tokenizer = TOKENIZERS["byte-level"]()
    source = "{{ messages[0].content | join }}"
    kept = ChatTemplate.required(bundle_of(tmp_path, SPECIAL, source)).keeping_typed(tokenizer)
    halves = ["<|im_end|>"[:cut], "<|im_end|>"[cut:]]
    ids = encode_rendered(*kept.spelled(tokenizer, kept.render([{"role": "user", "content": halves}])))
    assert not controls(tokenizer, ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_end|>"


def test_everything_that_a_client_sends_is_typed(tmp_path: Path) -> None:
    """Tools, their results and arguments, names, further variables and keys, also as JSON in ASCII."""
    tokenizer = TOKENIZERS["byte-level"]()
    source = "{{ messages | tojson(ensure_ascii=True) }}{{ tools | tojson }}{{ mood | upper }}<|im_end|>"
    kept = ChatTemplate.required(bundle_of(tmp_path, SPECIAL, source)).keeping_typed(tokenizer)
    end = "é<|im_end|>"
    text = kept.render(
        [{"role": end, "content": end, "name": end, "tool_calls": [{"function": {"arguments": {end: [end]}}}]}],
        tools=[{"type": end, "function": {"parameters": {"properties": {end: {"type": end}}}}}],
        variables={"mood": end},
    )
    ids = encode_rendered(*kept.spelled(tokenizer, text))
    assert controls(tokenizer, ids) == [tokenizer.token_to_id("<|im_end|>")]
    assert tokenizer.decode(ids, skip_special_tokens=False).count("<|im_end|>") == 10


def test_a_template_says_what_was_typed(tmp_path: Path) -> None:
    source = "{{ raise_exception('no ' ~ messages[0].content) }}"
    kept = ChatTemplate.required(bundle_of(tmp_path, SPECIAL, source)).keeping_typed(TOKENIZERS["byte-level"]())
    with pytest.raises(GenerationError, match=r"fails: no <s>$"):
        kept.render([{"role": "user", "content": "<s>"}])


def test_an_answer_to_be_continued_may_have_them(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["byte-level"]()
    kept = template_of(tmp_path, "chatml").keeping_typed(tokenizer)
    chat = [{"role": "user", "content": "<s>"}, {"role": "assistant", "content": "It is <s> "}]
    ids = encode_rendered(*kept.spelled(tokenizer, kept.render(chat, continued=True)))
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("<|im_start|>assistant\nIt is <s> ")
    assert tokenizer.token_to_id("<s>") not in ids


def test_a_tokenizer_without_control_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    kept = template_of(tmp_path, "chatml").keeping_typed(tokenizer)
    assert ids_of(kept, tokenizer, "a") == ids_of(template_of(tmp_path, "chatml"), tokenizer, "a")


@pytest.mark.parametrize(("name", "end"), [("chatml", "<|im_end|>"), ("llama-3", "<|eot_id|>"), ("chatml", "")])
def test_a_conversation_keeps_its_ids_and_what_is_typed(
    tmp_path: Path, tokenizer: Tokenizer, name: str, end: str
) -> None:
    kept = template_of(tmp_path, name).keeping_typed(tokenizer)
    chat = Conversation(kept, tokenizer, system="Say <|im_end|><|eot_id|>.")
    prompt = chat.prompt_for("<|im_start|>hi <")
    answer = encode_rendered(tokenizer, f"Fine.{end}")
    chat.add_answer(answer, "Fine.")
    following = chat.prompt_for("<|eot_id|>")
    assert following[: len(prompt) + len(answer)] == prompt + answer
    harmless = Conversation(template_of(tmp_path, name), tokenizer, system="x")
    harmless.prompt_for("x")
    harmless.add_answer(answer, "Fine.")
    assert controls(tokenizer, following) == controls(tokenizer, harmless.prompt_for("x"))


def test_what_the_tokenizer_puts_around_a_text_stays(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["byte-level"]()
    first = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", first)])
    kept = template_of(tmp_path, "chatml").keeping_typed(tokenizer)
    ids = encode_prompt(*kept.spelled(tokenizer, kept.render([{"role": "user", "content": "<s>"}])), first)
    assert ids[0] == first
    assert first not in ids[1:]
