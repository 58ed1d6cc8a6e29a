"""Sizes as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belugafs.units import SIZE_MAX_BYTES, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("1k", 1024),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("8GiB", 8 << 30),
        ("8 GiB", 8 << 30),
        (" 512M\n", 512 << 20),
        ("1.5G", 3 << 29),
        ("0.1G", 107374182),
        ("2T", 2 << 40),
        ("1P", 1 << 50),
        ("1GB", 10**9),
        ("1kb", 1000),
        ("9223372036854775807", SIZE_MAX_BYTES),
    ],
)
def test_parse(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "G", "8X", "8GG", "-8G", "+8G", "8,5G", "8 G B", "1e9", "0x10", "nan", "8.G", ".5G", "٨G"],
)
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size; write it like 8G"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0G", "0.0001K"])
def test_zero(text: str) -> None:
    with pytest.raises(ValueError, match="zero bytes"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8192P"])
def test_too_large(text: str) -> None:
    with pytest.raises(ValueError, match="larger than any file"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (8 << 30, "8 GiB"),
        ((8 << 30) - 1, "7.99 GiB"),
        ((1 << 30) - 1, "1023.99 MiB"),
        (5 << 50, "5 PiB"),
        (SIZE_MAX_BYTES, "8191.99 PiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_format(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(1, SIZE_MAX_BYTES))
def test_format_is_a_size_again_and_never_more(size_bytes: int) -> None:
    again_bytes = parse_size(format_size(size_bytes))
    assert size_bytes * 0.99 <= again_bytes <= size_bytes


@given(st.integers(1, 1023), st.sampled_from(["", "K", "M", "G", "T", "P"]))
def test_whole_numbers_survive(number: int, prefix: str) -> None:
    size_bytes = parse_size(f"{number}{prefix}")
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.text(max_size=20))
def test_never_another_error(text: str) -> None:
    try:
        assert 0 < parse_size(text) <= SIZE_MAX_BYTES
    except ValueError as error:
        assert repr(text) in str(error)
