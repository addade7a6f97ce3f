"""Answers of Valkey and Redis servers: written by a reference, cut anywhere, read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbf.errors import FormatError
from dlbf.kernels.resp import AnswerReader, ErrorAnswer, pack

words = st.binary(max_size=30)
lines = st.text("abc XYZ-:.09", max_size=20)
scalars = st.one_of(
    st.tuples(st.just(":"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("("), st.integers(-(2**90), 2**90)),
    st.tuples(st.just("$"), words),
    st.tuples(st.just("+"), lines),
    st.tuples(st.just("-"), lines),
    st.tuples(st.just("!"), lines),
    st.tuples(st.just("="), words),
    st.tuples(st.just(","), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.tuples(st.just("#"), st.booleans()),
    st.sampled_from([("_", None), ("nobulk", None), ("nolist", None)]),
)
answers = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("*~"), st.lists(inner, max_size=4)),
        st.tuples(st.just("%"), st.lists(st.tuples(inner, inner), max_size=3)),
    ),
    max_leaves=12,
)


def written(answer):
    """The bytes of an answer, and what is to be read from them."""
    kind, value = answer
    match kind:
        case ":" | "(":
            return f"{kind}{value}\r\n".encode(), value
        case "$":
            return b"$%d\r\n%b\r\n" % (len(value), value), value
        case "+":
            return f"+{value}\r\n".encode(), value.encode()
        case "-":
            return f"-{value}\r\n".encode(), ("error", value)
        case "!":
            return b"!%d\r\n%b\r\n" % (len(value), value.encode()), ("error", value)
        case "=":
            return b"=%d\r\ntxt:%b\r\n" % (len(value) + 4, value), value
        case ",":
            return f",{value!r}\r\n".encode(), b"%d" % int(value)
        case "#":
            return b"#t\r\n" if value else b"#f\r\n", int(value)
        case "_" | "nobulk" | "nolist":
            return {"_": b"_\r\n", "nobulk": b"$-1\r\n", "nolist": b"*-1\r\n"}[kind], b""
    parts = [written(one) for one in (value if kind != "%" else [one for pair in value for one in pair])]
    head = f"{kind}{len(value)}\r\n".encode()
    return head + b"".join(data for data, _ in parts), [meant for _, meant in parts]


def simple(found):
    """What was read, errors as pairs."""
    if isinstance(found, list):
        return [simple(one) for one in found]
    return ("error", found.text) if isinstance(found, ErrorAnswer) else found


@given(st.lists(answers, min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_answers_are_read_however_they_are_cut(wanted, cuts):
    data = b"".join(written(one)[0] for one in wanted)
    reader = AnswerReader()
    found = []
    at = turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        turn += 1
        reader.feed(data[at : at + step])
        at += step
        while (answer := reader.take()) is not None:
            found.append(simple(answer[0]))
    assert found == [written(one)[1] for one in wanted]
    assert reader.is_empty


def test_what_is_pushed_or_remarked_is_left_out():
    reader = AnswerReader()
    reader.feed(b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n|1\r\n+ttl\r\n:3\r\n:7\r\n>1\r\n:1\r\n")
    assert reader.take() == [7]
    assert reader.take() is None
    assert reader.is_empty
    reader.hears_pushes = True
    reader.feed(b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n")
    assert reader.take() == [[b"invalidate", [b"k"]]]


def test_long_answers_and_many_fit():
    reader = AnswerReader()
    big = bytes(range(256)) * 5000
    data = b"$%d\r\n%b\r\n" % (len(big), big)
    for start in range(0, len(data), 65536):
        assert reader.take() is None
        reader.feed(data[start : start + 65536])
    assert reader.take() == [big]
    reader.feed(b":1\r\n" * 100_000)
    assert [reader.take() for _ in range(100_000)] == [[1]] * 100_000


@pytest.mark.parametrize(
    "data",
    [b"?1\r\n", b"$x\r\n", b"*1.5\r\n", b"\r\n", b"+no end\n", b"*1\r\n" * 40 + b":1\r\n", b":x\r\n"],
)
def test_what_is_no_answer_is_refused(data):
    reader = AnswerReader()
    reader.feed(data)
    with pytest.raises(FormatError, match=r"a server's answer"):
        reader.take()


def test_kind_of_an_error_is_its_first_word():
    assert ErrorAnswer("MOVED 12 127.0.0.1:7000").kind == "MOVED"


@pytest.mark.parametrize(
    ("command", "data"),
    [
        ((b"SET", "k", 12), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n12\r\n"),
        (("ä", b"", True, bytearray(b"x")), b"*4\r\n$2\r\n\xc3\xa4\r\n$0\r\n\r\n$1\r\n1\r\n$1\r\nx\r\n"),
        ((), b"*0\r\n"),
    ],
)
def test_commands_are_written_as_servers_read_them(command, data):
    assert pack(command) == data
