from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitgate.records.base import InvariantError
from bitgate.sim.blocks import BlockPool
from bitgate.sim.content import block_keys


def keys_of(segments, serial, blocks, size=4):
    return list(islice(block_keys(tuple(segments), serial, size), blocks))


def test_the_queue_begins_in_order_without_the_reserved_block():
    pool = BlockPool(5)
    assert pool.queue() == [1, 2, 3, 4]
    assert pool.take(2) == [1, 2]
    assert pool.queue() == [3, 4]


def test_unnamed_blocks_come_back_to_the_front_last_first():
    pool = BlockPool(6)
    first, second = pool.take(2), pool.take(2)
    pool.give_back([], first)
    assert pool.queue() == [2, 1, 5]
    pool.give_back([], second)
    assert pool.queue() == [4, 3, 2, 1, 5]


def test_named_blocks_go_to_the_tail_last_first_and_the_unnamed_to_the_front():
    pool = BlockPool(6)
    blocks = pool.take(4)
    pool.name(blocks[:3], ["a", "b", "c"])
    pool.give_back(blocks[:3], blocks[3:])
    assert pool.queue() == [4, 5, 3, 2, 1]
    assert pool.find("abc") == [1, 2, 3]


def test_a_taken_block_loses_its_key():
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.name(blocks, "abc")
    pool.give_back(blocks, [])
    assert pool.take(1) == [3]
    assert pool.find("abc") == [1, 2]
    assert (pool.keys, pool.free) == (2, 2)


def test_a_chain_ends_at_the_first_key_that_is_missing():
    pool = BlockPool(6)
    pool.name(pool.take(3), "abd")
    assert pool.find("abcd") == [1, 2]


def test_of_copies_the_oldest_is_found_and_the_next_oldest_follows_it():
    pool = BlockPool(5)
    copies = [pool.take(1) for _ in range(4)]
    for block in copies:
        pool.name(block, "a")
    first, second, third, fourth = copies
    for gone, found in ((third, first), (first, second), (second, fourth), (fourth, [])):
        pool.give_back(gone, [])
        assert pool.take(1) == gone
        assert pool.find("a") == found
    assert pool.keys == 0


def test_a_shared_block_is_free_when_its_last_owner_gives_it_back():
    pool = BlockPool(3)
    owned = pool.take(1)
    pool.name(owned, "a")
    pool.share(owned)
    pool.share(owned)
    for free in (1, 1, 2):
        pool.give_back(owned, [])
        assert pool.free == free


def test_an_idle_block_that_is_shared_leaves_the_queue():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.name(blocks, "ab")
    pool.give_back(blocks, [])
    assert pool.count_idle(pool.find("ab")) == 2
    pool.share(pool.find("a"))
    assert pool.queue() == [3, 2]
    assert pool.count_idle(pool.find("ab")) == 1


def test_no_more_than_there_is_can_be_taken():
    with pytest.raises(InvariantError, match="asked for 3 of 2"):
        BlockPool(3).take(3)


def test_keys_agree_exactly_as_far_as_the_tokens_do():
    # Tokens: 7.0 to 7.7 and then 8.0 to 8.3, against 7.0 to 7.5 and then 8.0 to 8.5.
    one = keys_of([(7, 8), (8, 4)], serial=0, blocks=3)
    two = keys_of([(7, 6), (8, 6)], serial=1, blocks=3)
    assert one[0] == two[0]
    assert {*one[1:]}.isdisjoint(two[1:])


def test_a_key_holds_all_that_came_before():
    one = keys_of([(7, 4), (9, 4)], serial=0, blocks=2)
    two = keys_of([(8, 4), (9, 4)], serial=1, blocks=2)
    assert {*one}.isdisjoint(two)


def test_each_entry_counts_its_tokens_from_zero():
    split = keys_of([(7, 4), (7, 4)], serial=0, blocks=2)
    whole = keys_of([(7, 8)], serial=1, blocks=2)
    assert split[0] == whole[0]
    assert split[1] != whole[1]


@pytest.mark.parametrize("segments", [[], [(7, 4)]], ids=["nothing named", "a prefix named"])
def test_unnamed_tokens_are_shared_with_nobody(segments):
    one = keys_of(segments, serial=1, blocks=6)
    two = keys_of(segments, serial=2, blocks=6)
    named = len(segments)
    assert one[:named] == two[:named]
    assert len({*one[named:], *two[named:]}) == 2 * (6 - named)


SEGMENTS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), min_size=1, max_size=4)


@given(st.integers(1, 5), SEGMENTS, SEGMENTS)
def test_two_keys_are_equal_exactly_if_the_tokens_up_to_there_are(size, one, two):
    blocks = 8
    keys = [keys_of(names, serial, blocks, size) for serial, names in enumerate((one, two))]
    tokens = [tokens_of(names, serial, blocks * size) for serial, names in enumerate((one, two))]
    for first in range(blocks):
        for second in range(blocks):
            same = tokens[0][: (first + 1) * size] == tokens[1][: (second + 1) * size]
            assert (keys[0][first] == keys[1][second]) == same


def tokens_of(segments, serial, count):
    named = [(segment, offset) for segment, length in segments for offset in range(length)]
    return (named + [(("own", serial), offset) for offset in range(count)])[:count]
