"""Cutting a stream into lines, in every way it may come."""

from __future__ import annotations

import pytest

from app.frames import NO_ID, LineBuffer, TooLong

LINES = [b'{"id":1}', b"", b"x" * 30, b'{"id":2}']
STREAM = b"\n".join(LINES) + b"\n"


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_any_pieces_give_the_same_lines(size):
    buffer = LineBuffer(30)
    lines = []
    for start in range(0, len(STREAM), size):
        lines += buffer.feed(STREAM[start : start + size])
    assert lines == LINES


@pytest.mark.parametrize("size", [1, 7, 31, 1000])
def test_a_line_over_the_limit_is_replaced_and_the_next_is_whole(size):
    stream = b'{"id":"a","x":"' + b"x" * 100 + b'"}\n{"id":2}\n'
    buffer = LineBuffer(50)
    lines = []
    for start in range(0, len(stream), size):
        lines += buffer.feed(stream[start : start + size])
    long, line = lines
    assert type(long) is TooLong
    assert long.id == b'"a"'
    assert line == b'{"id":2}'


def test_limit_itself_is_allowed():
    assert LineBuffer(4).feed(b"1234\n12345\n")[0] == b"1234"
    assert type(LineBuffer(4).feed(b"1234\n12345\n")[1]) is TooLong


def test_a_long_line_is_not_kept():
    buffer = LineBuffer(1000)
    for _ in range(100):
        buffer.feed(b"x" * 500)
    assert sum(map(len, buffer._parts)) <= 1000


@pytest.mark.parametrize("head", [b"xxx", b'{"op":1,"id":2}', b'{"id":[1],', b'{"id":"' + b"x" * 600 + b'",'])
def test_id_that_is_not_at_the_head_is_not_guessed(head):
    assert TooLong(head).id == NO_ID
