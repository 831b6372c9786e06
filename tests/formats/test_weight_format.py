"""The table of weight formats, against arithmetic and against what the native libraries say of themselves."""

from __future__ import annotations

import ctypes
import importlib.resources

import pytest

from mxspec.formats.weight_format import (
    ELEMENTS,
    USER_NAMES,
    WEIGHT_FORMATS,
    format_of_element,
    named_by_user,
    packed_shape,
    weight_format,
)


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_sizes_are_those_of_the_bits(name: str) -> None:
    entry = weight_format(name)
    assert entry.name == name
    assert entry.code_bytes * 8 == 16 * 32 * entry.bits
    assert entry.scale_bytes == (0 if entry.element is None else 16)
    assert entry.bits_a_weight == entry.bits + (0 if entry.element is None else 0.25)
    assert packed_shape(name, 17, 33) == (2, 2 * (entry.code_bytes + entry.scale_bytes))


def test_native_numbers_are_all_different_and_elements_find_their_formats() -> None:
    assert sorted(entry.native_id for entry in WEIGHT_FORMATS.values()) == list(range(len(WEIGHT_FORMATS)))
    for element in ELEMENTS:
        assert format_of_element(element).element == element


@pytest.mark.parametrize(
    ("package", "library", "function"),
    [
        ("mxspec.formats.native", "libmxspec_codec.so", "mxspec_codec_weight_formats"),
        ("mxspec.runtime.ops", "libmxspec_ops.so", "mxspec_ops_weight_formats"),
    ],
)
def test_the_libraries_have_the_same_table(package: str, library: str, function: str) -> None:
    exported = getattr(ctypes.CDLL(str(importlib.resources.files(package).joinpath(library))), function)
    exported.restype = ctypes.c_char_p
    lines = [
        [str(e.native_id), e.name, str(e.bits), str(e.code_bytes), str(e.scale_bytes), *e.activations]
        for e in WEIGHT_FORMATS.values()
    ]
    assert [line.split() for line in exported().decode().splitlines()] == lines


def test_the_word_of_users_for_fp16_tiles() -> None:
    assert named_by_user("fp16") == named_by_user("fp16_tiles") == "fp16_tiles"
    assert "fp16_tiles" not in USER_NAMES
    assert {named_by_user(name) for name in USER_NAMES} == set(WEIGHT_FORMATS)


def test_unknown_names_are_errors_that_name_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"format: got 'mxfp6_e2m4', expected one of fp16, mx.*did you mean 'mxfp6"):
        named_by_user("mxfp6_e2m4")
    with pytest.raises(ValueError, match=r"format: got 'fp16', expected one of fp16_tiles"):
        weight_format("fp16")
    with pytest.raises(ValueError, match="element: got 'e4m3', expected one of e3m2, e2m3"):
        format_of_element("e4m3")
