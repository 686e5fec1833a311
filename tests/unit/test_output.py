"""Whatever is fed, in whatever pieces: the head, the tail, and a true count of what lies between."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.action import KEEP_ALL, Keep
from excise.output import Kept

PIECES = st.lists(st.binary(max_size=40), max_size=30)
FEW_BYTES = st.integers(0, 60)


@given(PIECES, FEW_BYTES, FEW_BYTES)
@settings(derandomize=True)
def test_the_head_and_the_tail_of_the_whole_stream_are_kept(pieces: list[bytes], head_bytes: int, tail_bytes: int) -> None:
    kept = Kept(Keep(head_bytes, tail_bytes))
    for piece in pieces:
        kept.feed(piece)
    whole = b"".join(pieces)
    dropped = max(0, len(whole) - head_bytes - tail_bytes)
    assert kept.bytes() == whole[:head_bytes] + whole[head_bytes + dropped :]
    assert kept.dropped_bytes == dropped


@given(PIECES, PIECES, FEW_BYTES, FEW_BYTES)
@settings(derandomize=True)
def test_looking_in_between_changes_nothing(first: list[bytes], then: list[bytes], head_bytes: int, tail_bytes: int) -> None:
    seen, unseen = Kept(Keep(head_bytes, tail_bytes)), Kept(Keep(head_bytes, tail_bytes))
    for piece in first:
        seen.feed(piece)
        unseen.feed(piece)
    assert seen.bytes() == seen.bytes()
    for piece in then:
        seen.feed(piece)
        unseen.feed(piece)
    assert (seen.dropped_bytes, seen.bytes()) == (unseen.dropped_bytes, unseen.bytes())


@pytest.mark.parametrize("piece_bytes", [10, 4096, 65536])
def test_a_flood_is_held_in_bounded_memory(piece_bytes: int) -> None:
    keep = Keep(head_bytes=20_000, tail_bytes=20_000)
    kept = Kept(keep)
    piece = bytes(piece_bytes)
    tracemalloc.start()
    try:
        for _ in range(2_000_000 // piece_bytes):
            kept.feed(piece)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # What is held, once more while it is trimmed, and the piece in hand.
    assert peak_bytes < 2 * (keep.head_bytes + 2 * keep.tail_bytes + 2 * piece_bytes)


def test_keep_all_drops_nothing() -> None:
    kept = Kept(KEEP_ALL)
    for _ in range(300):
        kept.feed(bytes(10_000))
    assert (len(kept.bytes()), kept.dropped_bytes) == (3_000_000, 0)
