"""A draft that writes text: what it proposes, what it reads again, and that no text changes."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.drafter import Choice, Wanted
from mxspec.runtime.drafters.known import make_drafters, why_missing
from mxspec.runtime.drafters.text_draft import TextDraft, TextDrafter
from mxspec.runtime.events import Round, Token
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.sampling.settings import Sampling
from tests.runtime.conftest import make_want

OURS = ("a", "b", "c", "d", "ab", "cd", "</s>")  # the target's tokens
THEIRS = ("<s>", "d", "c", "b", "a", "bc", "da", "<end>", "<other>")  # the draft's
END, OTHER = 7, 8
STORY = "abcd" * 12
READS = {"a": [4], "b": [3], "c": [2], "d": [1], "ab": [4, 3], "cd": [2, 1], "</s>": [END]}


def target_tokenizer() -> Tokenizer:
    """The longest tokens that there are."""
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in OURS[:-1]]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


TOKENS = DraftTokens(
    head_ids=np.array([-1, 3, 2, 1, 0, -1, -1, 6, -1]),
    reads=len(THEIRS),
    begins=np.array([0, *accumulate(len(READS[token]) for token in OURS)], np.int32),
    ids=np.array([own for token in OURS for own in READS[token]], np.int32),
    start=(0,),
    texts=tuple(b"" if own.startswith("<") else own.encode() for own in THEIRS),
)


def spelled(own: tuple[int, ...]) -> str:
    return "".join(THEIRS[token] for token in own[1:])


def row(size: int, *likely: int) -> Any:
    found = np.zeros(size, np.float32)
    for place, token in enumerate(likely):
        found[token] = 9 - place
    return found


def storyteller(own: tuple[int, ...], story: str = STORY) -> Any:
    """The draft goes on with the story in its own longest tokens, and then ends."""
    assert own[0] == 0
    text = spelled(own).replace("<end>", "")
    assert story.startswith(text), text
    rest = story[len(text) :]
    return row(len(THEIRS), max((len(t), n) for n, t in enumerate(THEIRS) if rest.startswith(t))[1] if rest else END)


def listener(text: tuple[int, ...]) -> Any:
    """The target goes on with the story in its own longest tokens."""
    rest = STORY[len("".join(OURS[token] for token in text)) :]
    return row(len(OURS), max((len(t), n) for n, t in enumerate(OURS) if rest.startswith(t))[1] if rest else 6)


def drafter(session: Any) -> TextDrafter:
    made = make_drafters(len(OURS), TextDraft(session, target_tokenizer()))["model"]
    assert isinstance(made, TextDrafter)
    return made


def wanted(
    text: list[int], slot: Slot, k: int, break_even: float = 0.0, *, traced: bool = False, **settings: Any
) -> Wanted:
    sampling, prices = Sampling(**settings), BreakEven(row=break_even, call=break_even + 0.05)
    given: dict[str, Any] = {"slot": slot, "memory": [], "break_even": prices, "traced": traced}
    choice = Choice(sampling.greedy, matched=True)
    return make_want(text, k, vocab_size=len(OURS), sampling=sampling, choice=choice, **given)


@pytest.fixture
def session(toys: Any) -> Any:
    return toys.Session(storyteller, tokens=TOKENS, slots=2)


def read_by(session: Any) -> list[int]:
    """Tokens of the text or of its own that the draft read in each call since the last time."""
    counts = [sum(tokens for _, _, tokens, _ in call) for call in session.calls]
    session.calls.clear()
    return counts


def test_its_text_is_proposed_in_the_targets_tokens(session: Any) -> None:
    """After ab it writes c, da and bc, of which the target makes cd, ab, and c, which may yet become cd."""
    want = wanted([4], Slot(0), 3)
    calls = drafter(session).propose([want])
    assert [OURS[token] for token in want.proposal.tokens] == ["cd", "ab", "c"]
    assert want.proposal.origins == ["model"] * 3
    assert [spelled(tuple(session._caches[0][: end + 1])) for end in (2, 3, 4)] == ["ab", "abc", "abcda"]
    assert len(calls) == 3  # for each token its share of the time


def test_it_reads_again_only_what_ends_amid_a_token(session: Any) -> None:
    slot, model, text = Slot(0), drafter(session), [4]
    want = wanted(text, slot, 3)
    model.propose([want])
    assert read_by(session) == [1, 1, 1]  # ab, and then c and da
    text += [5, 4, 5]  # the target has cd|ab|cd, where it wrote c|da|bc
    slot.rollback(len(text) - 1)
    model.propose([wanted(text, slot, 1)])
    assert read_by(session)[0] == 3  # the three tokens after ab: none of them ends where one of the draft's does


def test_what_it_wrote_stays_where_both_agree(toys: Any) -> None:
    session = toys.Session(lambda own: storyteller(own, "ab" * 9), tokens=TOKENS)
    slot, model, text = Slot(0), drafter(session), [4]
    want = wanted(text, slot, 3)
    model.propose([want])
    assert want.proposal.tokens == [4, 4, 0]  # of a, b, a, b and a, the last of which it has not read
    assert slot.draft_length == 3
    text += [4, 4, 4]
    read_by(session)
    model.propose([wanted(text, slot, 1)])
    assert read_by(session)[0] == 1


def test_a_draft_that_tells_the_same_story_is_right(toys: Any, session: Any) -> None:
    """Except that the last token of a round may be the beginning of a longer one."""
    target = toys.Session(listener)
    events = list(toys.generate(target, session, [4], k=3, drafter=drafter(session), max_new_tokens=16))
    rounds = [event for event in events if isinstance(event, Round)][1:]
    assert all(done.accepted >= done.drafted - 1 for done in rounds)
    assert sum(done.accepted for done in rounds) == 9
    assert {event.origin for event in events if isinstance(event, Token)} == {"model", "target"}


def test_its_end_is_the_targets_end(toys: Any) -> None:
    session = toys.Session(lambda own: storyteller(own, "abcd"), tokens=TOKENS)
    want = wanted([4], Slot(0), 4)
    drafter(session).propose([want])
    assert [OURS[token] for token in want.proposal.tokens] == ["cd", "</s>"]
    other = toys.Session(lambda own: row(len(THEIRS), OTHER), tokens=TOKENS)
    want = wanted([4], Slot(0), 4)
    assert len(drafter(other).propose([want])) == 1
    assert want.proposal.tokens == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_texts_are_the_same_with_and_without(toys: Any, temperature: float, k: int) -> None:
    """With a draft that is right now and then, several texts at a time, penalties and rollbacks."""
    target_logits = toys.random_logits(len(OURS), 1)

    def own_logits(own: tuple[int, ...]) -> Any:
        ids = target_tokenizer().encode(spelled(own).replace("<end>", "</s>")).ids
        row = toys.random_logits(len(THEIRS), 2)(own) * 0.5
        expected = target_logits(tuple(ids)) if ids else np.zeros(len(OURS), np.float32)
        for place, ours in enumerate(TOKENS.head_ids):
            row[place] += expected[ours] if ours >= 0 else -1
        return row

    settings = {"temperature": temperature, "max_new_tokens": 24, "repetition_penalty": 1.1}
    if temperature:
        settings |= {"seed": 5, "verifier": "match"}
    prompt = [4, 5]
    plain = toys.tokens(toys.generate(toys.Session(target_logits), None, prompt, **settings))
    target, draft = toys.Session(target_logits, slots=2), toys.Session(own_logits, tokens=TOKENS, slots=2)
    model, scheduler = drafter(draft), toys.scheduler(target, draft)
    boxes = [scheduler.write(prompt, k=k, drafter=model, **settings) for _ in range(3)]
    scheduler.run()
    for box in boxes:
        assert toys.tokens(box) == plain
    assert sum(event.accepted for event in boxes[0] if isinstance(event, Round)) > 0


def test_it_stops_where_it_is_not_sure(toys: Any) -> None:
    def unsure(own: tuple[int, ...]) -> Any:
        return storyteller(own) * (0.25 if len(own) > 5 else 1)

    counts = {}
    for break_even in (0.0, 0.5):
        want = wanted([4], Slot(0), 5, break_even)
        drafter(toys.Session(unsure, tokens=TOKENS)).propose([want])
        counts[break_even] = len(want.proposal.tokens), len(want.memory)
    assert counts[0.0] == (5, 0)
    assert 0 < counts[0.5][0] == counts[0.5][1] < 5  # a level for each proposed token


def test_a_trace_has_the_probability_of_what_it_wrote(session: Any) -> None:
    """Of c and da for cd, of da and bc for ab, and of bc for c; each has a logit of 9, and eight others 0."""
    want = wanted([4], Slot(0), 3, traced=True)
    drafter(session).propose([want])
    said = np.exp(9) / (np.exp(9) + 8)
    assert list(want.proposal.confidences) == [0, 1, 2]
    np.testing.assert_allclose(list(want.proposal.confidences.values()), [said**2, said**2, said], rtol=1e-5)


def test_a_broken_row_ends_its_own_text_alone(toys: Any) -> None:
    def broken(own: tuple[int, ...]) -> Any:
        return storyteller(own) * (np.nan if spelled(own).startswith("ab") else 1)

    session = toys.Session(broken, tokens=TOKENS, slots=2)
    wants = [wanted([4], Slot(0), 2), wanted([0], Slot(1), 2)]
    drafter(session).propose(wants)
    assert [len(want.proposal.errors) for want in wants] == [1, 0]
    assert isinstance(wants[0].proposal.errors[0], GenerationError)


def test_a_grammar_or_setting_ends_the_proposal(session: Any) -> None:
    want = wanted([4], Slot(0), 3, no_repeat_ngram_size=1, repetition_penalty=1.0)
    drafter(session).propose([want])
    assert [OURS[token] for token in want.proposal.tokens] == ["cd"]  # ab would be a repetition


def test_its_cache_may_end(toys: Any) -> None:
    session = toys.Session(storyteller, capacity=5, tokens=TOKENS)
    want, slot = wanted([4], Slot(0), 9), Slot(0)
    drafter(session).propose([want])
    assert 0 < len(want.proposal.tokens) < 5
    assert drafter(session).propose([wanted([4, 5, 4], slot, 2)]) == []
    assert slot.undraftable


def test_no_guess_of_several_tokens_is_checked_by_it(session: Any) -> None:
    assert "hierarchical" not in make_drafters(len(OURS), TextDraft(session, target_tokenizer()))
    assert "reads hidden states or writes text" in str(why_missing("hierarchical", has_draft=True))
