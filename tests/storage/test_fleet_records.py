"""Records of the shared log: golden bytes, and damage is noticed."""

import random

import pytest

from dlbf.errors import FormatError
from dlbf.storage.fleet.records import Add, Begin, Done, End, Remove, decode, encode

GOLDEN = [
    (Add((b"k1", b"")), 3, "41 03 02 02 6b31 00"),
    (Add((b"x" * 128,)), 300, "41 ac02 01 8001" + "78" * 128),
    (Done((1, 200)), 1, "44 01 02 01 c801"),
    (Remove(7, (b"k",)), 1, "52 01 07 01 01 6b"),
    (Begin((b"D1", b"D2")), 2, "42 02 02 02 4431 02 4432"),
    (End(9, (b"D",)), 2, "45 02 09 01 01 44"),
]


@pytest.mark.parametrize(("record", "epoch", "golden"), GOLDEN)
def test_record_has_its_golden_bytes_and_comes_back(record, epoch, golden):
    data = bytes.fromhex(golden)
    assert encode(record, epoch) == data
    assert decode(data) == (epoch, record)


@pytest.mark.parametrize(("record", "epoch", "golden"), GOLDEN)
def test_cut_or_longer_record_is_refused(record, epoch, golden):
    data = bytes.fromhex(golden)
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode(data[:length])
    with pytest.raises(FormatError, match="ends at byte"):
        decode(data + b"\0")


def test_unknown_type_is_named():
    with pytest.raises(FormatError, match="type b'Z'"):
        decode(b"Z\1\0")


def test_random_records_come_back():
    draw = random.Random(22)
    for _ in range(300):
        strings = tuple(draw.randbytes(draw.choice((0, 1, 127, 128, 20_000))) for _ in range(draw.randrange(4)))
        number = draw.choice((0, 1, 127, 128, 2**40))
        for record in (
            Add(strings),
            Remove(number, strings),
            End(number, strings),
            Begin(strings),
            Done((number,) * 3),
        ):
            assert decode(encode(record, number)) == (number, record)
