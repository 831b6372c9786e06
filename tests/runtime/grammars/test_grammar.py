"""Random models of toy vocabularies under a grammar: whatever is drafted, kept and given up, the text keeps to it.

The checkers are Python's own: `json`, a regular expression that matches a beginning, a counter of brackets.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import regex
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mxspec.formats.errors import GenerationError
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper, prepare
from mxspec.runtime.text.detokenize import BYTE_OF_LETTER
from mxspec.runtime.verifiers.verify import Scored, verify_mrs

EOS = 0
WORDS = ['{"', '":', ' "', '",', '"}', "name", "age", "true", "12", "on", " the", "()", "((", "))", "ab", "é", "日本"]


def byte_level() -> Tokenizer:
    """Every byte is a token, and some words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<end>": EOS, **{letter: i + 1 for i, letter in enumerate(alphabet)}}
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges = []
    for word in WORDS:
        letters = spell.pre_tokenize_str(word)[0][0]
        for end in range(2, len(letters) + 1):
            if letters[:end] not in vocab:
                vocab[letters[:end]] = len(vocab)
                merges.append((letters[: end - 1], letters[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = spell
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2 has it: letters and words, ▁ for a space, and <0xE6> for what has no letter."""
    names = ["<end>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    names += [chr(code) for code in range(33, 127)]
    merges = []
    for word in (word.replace(" ", "▁") for word in WORDS if word.isascii()):
        for end in range(2, len(word) + 1):
            if word[:end] not in names:
                names.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<end>", "<unk>"])
    return tokenizer


def written(tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    """The bytes that tokens write, from their names alone."""
    out = b""
    for token in tokens:
        name = tokenizer.id_to_token(token)
        if tokenizer.decoder is not None and "Strip" in repr(tokenizer.decoder):
            out += bytes([int(name[3:5], 16)]) if name.startswith("<0x") else name.replace("▁", " ").encode()
        else:
            out += bytes(map(BYTE_OF_LETTER.__getitem__, name))
    return out


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback()}

SPACE = r"[ \t\r\n]*+"
STRING = r'"(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["name", "age", "on"],
    "additionalProperties": False,
}
PERSON_TEXT = (
    rf'\{{{SPACE}"name"{SPACE}:{SPACE}{STRING}{SPACE},{SPACE}"age"{SPACE}:{SPACE}-?(?:0|[1-9][0-9]*){SPACE},{SPACE}'
    rf'"on"{SPACE}:{SPACE}(?:true|false){SPACE}\}}'
)


def is_person(text: str) -> bool:
    value = json.loads(text)
    kinds = {name: type(part) for name, part in value.items()}
    return kinds == {"name": str, "age": int, "on": bool}


def brackets_open(text: str) -> bool:
    """A beginning of nested brackets."""
    depth = 0
    for i, letter in enumerate(text):
        depth += {"(": 1, ")": -1}[letter]
        if depth < 0 or (depth == 0 and i + 1 < len(text)):
            return False
    return True


@dataclass(frozen=True)
class Case:
    grammar: Grammar
    begins: Callable[[str], bool]
    whole: Callable[[str], bool]


def pattern(text: str) -> Case:
    return Case(
        Grammar.regex(text),
        lambda written: regex.fullmatch(text, written, partial=True) is not None,
        lambda written: regex.fullmatch(text, written) is not None,
    )


CASES = {
    "json": Case(
        Grammar.json_schema(PERSON),
        lambda text: regex.fullmatch(PERSON_TEXT, text, partial=True) is not None,
        is_person,
    ),
    "regex": pattern(r"(?:ab|a\(){2,4}é?[0-9]{1,3}(?:日本|true)"),
    "open regex": pattern(r"[a-z日é]+(?: [a-z()]+)*"),
    "lark": Case(
        Grammar.lark('start: "(" start* ")"'),
        brackets_open,
        lambda text: brackets_open(text) and text.count("(") == text.count(")") > 0,
    ),
}


def play(case: Case, tokenizer: Tokenizer, seed: int, limit: int = 40) -> tuple[list[int], str]:
    """One text of a random pair of models, by rounds as the engine has them; the matcher is compared with a new one."""
    rng = np.random.default_rng(seed)
    vocab = tokenizer.get_vocab_size() + 11  # and padding
    favour = np.zeros(vocab, np.float32)
    favour[[i for i in range(vocab - 11) if any(c in tokenizer.id_to_token(i) for c in '")}')]] = 2

    def row() -> Any:
        return (favour + 2 * rng.standard_normal(vocab)).astype(np.float32)

    sampling = Sampling(1.0, top_p=float(rng.choice([1.0, 0.9])), seed=seed)
    one = Shaper(sampling, [], vocab_size=vocab, eos=[EOS], grammar=case.grammar.compile(tokenizer, [EOS], vocab))
    text: list[int] = []
    while len(text) < limit:
        drafted, distributions = list[int](), []
        forced = one.forced() if rng.random() < 0.3 else []
        for i in range(rng.integers(0, 5)):
            if rng.random() < 0.3:
                prepare([(one, drafted)])
            distributions.append(one.distribution(row(), drafted))
            token = distributions[i].draw(rng.random())
            if rng.random() < 0.2:  # a drafter that knows of no grammar
                token = int(rng.choice([EOS, int(rng.integers(0, vocab))]))
            drafted.append(forced[i] if i < len(forced) else token)
        if rng.random() < 0.5:
            prepare([(one, drafted)])
        logits = [row() for _ in range(len(drafted) + 1)]
        masked = one.process(logits[-1], drafted)
        assert one.greedy(logits[-1], drafted) == masked.argmax()
        assert one.distribution(logits[-1], drafted).probability(int(masked.argmin())) == 0 or masked.min() > -np.inf
        verdict = verify_mrs(
            Scored(
                drafted,
                distributions,
                lambda i, logits=logits, drafted=drafted: one.distribution(logits[i], drafted[:i]),
                Draws(seed, 0, len(text)),
                lenience=0.7,
            )
        )
        for token in [*drafted[: verdict.accepted], verdict.next_token]:
            one.keep([token])
            if token == EOS:
                return text, "eos"
            text.append(token)
            assert token < vocab - 11, "padding was written"
            if one.complete:
                return text, "grammar"
        fresh = case.grammar.compile(tokenizer, [EOS], vocab)
        fresh.keep(text)
        assert not fresh.complete
        mask, want = one.grammar.mask([]), fresh.mask([])  # type: ignore[union-attr]
        assert mask is not None
        assert want is not None
        np.testing.assert_array_equal(mask.flags(), want.flags())
    return text, "max_new_tokens"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("case", CASES)
def test_random_texts_keep_to_the_grammar(case: str, tokenizer: str) -> None:
    reasons = []
    for seed in range(40):
        tokens, reason = play(CASES[case], TOKENIZERS[tokenizer], seed)
        data = written(TOKENIZERS[tokenizer], tokens)
        text = codecs.getincrementaldecoder("utf-8")().decode(data)  # a letter may be cut, and not be wrong
        assert CASES[case].begins(text), (text, reason)
        if reason != "max_new_tokens":
            assert CASES[case].whole(data.decode()), (text, reason)
        reasons.append(reason)
    assert set(reasons) & {"eos", "grammar"}


def matcher(grammar: Grammar, eos: tuple[int, ...] = (EOS,), extra: int = 0) -> Any:
    tokenizer = TOKENIZERS["byte-level"]
    return grammar.compile(tokenizer, eos, tokenizer.get_vocab_size() + extra)


def allowed(mask: Any) -> list[str]:
    return sorted(TOKENIZERS["byte-level"].id_to_token(int(i)) for i in np.flatnonzero(mask.flags()))


def ids(text: str) -> list[int]:
    return [int(i) for i in TOKENIZERS["byte-level"].encode(text, add_special_tokens=False).ids]


def test_an_end_in_a_look_ahead_takes_nothing_with_it() -> None:
    one = matcher(Grammar.lark('start: "(" start* ")"'))
    bracket, closed = ids("("), ids(")")
    one.keep(bracket)
    for ahead in ([*closed, EOS], [EOS], [*bracket, EOS, *closed], [*closed, EOS, EOS]):
        assert one.mask(ahead) is None  # nothing is emitted after an end
        assert allowed(one.mask([])) == ["(", "((", "()", ")"]
    assert allowed(one.mask(closed)) == ["<end>"]
    assert not one.complete
    one.keep(closed)
    assert one.complete


def test_an_end_where_the_text_could_go_on() -> None:
    one = matcher(Grammar.regex("(ab)+"))
    one.keep(ids("ab"))
    assert one.mask([EOS]) is None
    assert one.mask([*ids("ab"), EOS, *ids("ab")]) is None
    assert one.forced([EOS]) == []
    assert allowed(one.mask([])) == ["<end>", "a", "ab"]
    assert not one.complete
    one.keep([EOS])
    assert one.complete
    assert one.mask([]) is None


def test_a_look_ahead_that_was_given_up_leaves_no_mask() -> None:
    """llguidance 1.9.1 with a rollback gives the mask of the first look-ahead, with the two brackets of its depth."""
    one = matcher(Grammar.lark('start: "(" start* ")"'))
    one.keep([*ids("("), *ids("()")])
    assert allowed(one.mask(ids("(("))) == ["(", "((", "()", ")", "))"]
    assert allowed(one.mask(ids("()"))) == ["(", "((", "()", ")"]


def test_nothing_is_masked_after_a_token_that_the_grammar_refuses() -> None:
    one = matcher(Grammar.regex("ab*"))
    assert one.mask(ids("x")) is None
    assert one.mask([*ids("ab"), *ids("x"), *ids("b")]) is None
    assert one.forced(ids("x")) == []
    assert allowed(one.mask([])) == ["a", "ab"]


def test_forced_tokens_follow_the_text_and_the_look_ahead() -> None:
    one = matcher(Grammar.json_schema(PERSON | {"x-guidance": {"whitespace_flexible": False}}))
    tokenizer = TOKENIZERS["byte-level"]
    begin = one.forced([])
    assert '{"name":'.startswith(tokenizer.decode(begin))
    assert len(begin) > 0
    one.keep(begin)
    name = ids('{"name":"')[len(begin) :]
    assert one.forced([*name, *ids("x")]) == []
    after = one.forced([*name, *ids('x"')])
    assert ',"age":'.startswith(tokenizer.decode(after))
    assert len(after) > 0


def test_a_text_is_complete_if_only_an_end_may_follow() -> None:
    one = matcher(Grammar.regex("(ab)+c?"))
    states = []
    for token in [*ids("ab"), *ids("ab"), *ids("c")]:
        one.keep([token])
        states.append(one.complete)
    assert states == [False, False, True]
    assert allowed(one.mask([])) == ["<end>"]
    assert matcher(Grammar.regex("a?")).mask([]).flags()[EOS]


def test_ids_beyond_the_tokenizer_and_ends_that_are_letters() -> None:
    size = TOKENIZERS["byte-level"].get_vocab_size()
    letter = ids("a")[0]
    one = matcher(Grammar.regex("(?s:.*)b"), (EOS, letter, size + 5, size + 900), extra=37)
    flags = one.mask([]).flags()
    assert len(flags) == size + 37
    assert not flags[[EOS, letter, size + 5]].any()  # an end where the text is no sentence yet
    assert not flags[size:].any()
    flags = one.mask(ids("b")).flags()
    assert flags[[EOS, letter, size + 5]].all()
    assert flags[size:].sum() == 1
    short = Grammar.regex("[ab]+").compile(TOKENIZERS["byte-level"], (EOS,), letter + 1)
    assert np.flatnonzero(short.mask([]).flags()).tolist() == [letter]


def test_without_any_end_a_text_may_still_be_complete() -> None:
    one = matcher(Grammar.regex("a"), ())
    assert one.mask(ids("a")) is None
    one.keep(ids("a"))
    assert one.complete


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_without_an_allowed_token_is_refused_by_name(temperature: float) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    vocab = tokenizer.get_vocab_size()
    one = Shaper(Sampling(temperature), [], vocab_size=vocab, eos=[EOS], grammar=matcher(Grammar.regex("ab|[()]+c")))
    logits = np.zeros(vocab, np.float32)
    assert one.greedy(logits) == ids("(")[0]
    logits[ids("a") + ids("ab") + ids("(") + ids(")") + ids("((") + ids("()") + ids("))")] = -np.inf
    with pytest.raises(GenerationError, match=r"^grammar: leaves no token at position 0 "):
        one.distribution(logits) if temperature else one.greedy(logits)


def test_a_vocabulary_that_cannot_write_the_sentence() -> None:
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a": 1, "b": 2}, []))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<end>"])
    one = Shaper(Sampling(), [], vocab_size=3, eos=[0], grammar=Grammar.regex("ac").compile(tokenizer, [0], 3))
    one.keep([1])
    with pytest.raises(GenerationError, match=r"^grammar: [^\n]+$"):
        one.greedy(np.zeros(3, np.float32))


def test_many_together_equal_each_alone() -> None:
    texts = ["", "a", "ab12", "abab", "(", "(("]
    grammars = [Grammar.regex("[ab0-9]*"), Grammar.regex("(ab)*"), Grammar.lark('start: "(" start* ")" | "a" "b"?')] * 5
    vocab = TOKENIZERS["byte-level"].get_vocab_size()
    shapers = [Shaper(Sampling(), [], vocab_size=vocab, eos=[EOS], grammar=matcher(grammar)) for grammar in grammars]
    rng = np.random.default_rng(3)
    for _ in range(10):
        jobs = [(one, ids(str(rng.choice(texts)))) for one in shapers]
        prepare(jobs)
        for (one, ahead), grammar in zip(jobs, grammars, strict=True):
            for length in range(len(ahead) + 1):
                got, want = one.grammar.mask(ahead[:length]), matcher(grammar).mask(ahead[:length])  # type: ignore[union-attr]
                assert (got is None) == (want is None)
                assert got is None or allowed(got) == allowed(want)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: Grammar.json_schema({"type": "objekt"}),
        lambda: Grammar.json_schema({"type": "object", "not": {}}),
        lambda: Grammar.json_schema("{not json"),
        lambda: Grammar.json_schema("[1]"),
        lambda: Grammar.json_schema({"type": object}),
        lambda: Grammar.json_schema(5),  # type: ignore[arg-type]
        lambda: Grammar.regex("a("),
        lambda: Grammar.regex("(?=a)b"),
        lambda: Grammar.regex(None),  # type: ignore[arg-type]
        lambda: Grammar.lark('start: "x'),
        lambda: Grammar.lark("start: foo"),
        lambda: Grammar.lark(""),
        lambda: Grammar.regex("\ud800"),
        lambda: Grammar.regex("(" * 5000),
        lambda: Grammar.json_schema('{"a":' * 5000),
    ],
)
def test_a_grammar_that_does_not_parse_is_one_line(broken: Callable[[], Grammar]) -> None:
    with pytest.raises(GenerationError, match=r"^grammar: [^\n]{1,360}$"):
        matcher(broken())


def test_a_grammar_that_grows_too_large_ends_its_own_text_only() -> None:
    vocab = TOKENIZERS["byte-level"].get_vocab_size()
    grammars = [Grammar.regex("((a{1,100}){1,100}){1,100}"), Grammar.regex("a*b")]
    large, small = (Shaper(Sampling(), [], vocab_size=vocab, eos=[EOS], grammar=matcher(one)) for one in grammars)
    logits = np.zeros(vocab, np.float32)

    def grow() -> None:
        for _ in range(1000):
            prepare([(large, ids("aa")), (small, ids("aa"))])
            assert small.greedy(logits, ids("aa")) == ids("a")[0]
            small.keep(ids("a"))
            large.greedy(logits, ids("aa"))
            large.keep(ids("a"))

    with pytest.raises(GenerationError, match=r"^grammar: [^\n]{1,360}$"):
        grow()


def test_a_grammar_that_fails_ahead_of_its_text_allows_no_guess_there() -> None:
    """A guess is asked of texts together: an error of one would end them all, also those that have no grammar."""
    vocab = TOKENIZERS["byte-level"].get_vocab_size()
    grown = matcher(Grammar.regex("((a{1,100}){1,100}){1,100}"))
    shaper = Shaper(Sampling(), [], vocab_size=vocab, eos=[EOS], grammar=grown)
    ahead = ids("a")
    while shaper.allows(ahead[0], ahead):
        ahead += ids("a")
    assert 10 < len(ahead) < 5000
    with pytest.raises(GenerationError, match=r"^grammar: [^\n]{1,360}$"):
        shaper.greedy(np.zeros(vocab, np.float32), ahead)


def test_a_tokenizer_that_llguidance_cannot_read_is_one_line() -> None:
    with pytest.raises(GenerationError, match=r"^grammar: this tokenizer is not supported: [^\n]+$"):
        Grammar.regex("a").compile(Tokenizer(models.BPE({"<end>": 0, "a": 1}, [])), [0], 2)


def test_limits_of_a_tokenizer_do_not_cut_forced_text() -> None:
    limited = Tokenizer.from_str(TOKENIZERS["byte-level"].to_str())
    limited.enable_truncation(1)
    limited.enable_padding(length=9)
    one = Grammar.regex("true12true").compile(limited, [EOS], limited.get_vocab_size())
    assert one.forced([]) == matcher(Grammar.regex("true12true")).forced([])


def test_without_llguidance_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GenerationError, match=r"pip install 'mxspec\[grammar\]'"):
        Grammar.regex("a").compile(byte_level(), [EOS], 300)
