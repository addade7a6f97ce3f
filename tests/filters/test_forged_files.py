"""Malformed files with right checksums: an error of dlbf's or a filter that works, and nothing of the file kept."""

import contextlib
import random
import struct
from pathlib import Path

import pytest
from support.learned_common import KEYS, fitted, secret_of, with_exact_set
from support.samples import SECRET, SMALL_FILTERS, small_filters

import dlbf
from dlbf import format
from dlbf.learned.assembly import DIRECTORY, PART

LEARNED = {
    "learned auto": lambda: fitted("auto"),
    "learned exact sets": lambda: with_exact_set()[0],
    "learned shared": lambda: fitted("ada-cbf"),
    "learned initial": lambda: fitted("slbf-3cbf"),
    "learned keyed": lambda: fitted("uptown"),
    "learned without a model": lambda: fitted("cuckoo"),
}
STATIC = {"static ribbon": lambda: dlbf.RibbonFilter.build(KEYS, 0.2)}
MAKERS = SMALL_FILTERS | {"keyed": small_filters(SECRET)["cuckoo"]} | STATIC | LEARNED
SECRETS = {"keyed": SECRET, "learned keyed": secret_of("uptown")}
MAPS = Path("/proc/self/maps")
NUMBERS = (0, 1, 2, 3, 7, 8, 63, 64, 255, 2**16, 2**31, 2**32 - 1, 2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1)


def example(name: str) -> bytes:
    f = MAKERS[name]()
    if not name.startswith(("learned", "static")):
        f.update(KEYS[:20])
    return f.to_bytes()


def forged(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a few things changed, and every checksum right."""
    header, payload = format.unpack(data)
    values = {name: getattr(header, name) for name in header.__dataclass_fields__}
    payload = bytearray(payload)
    learned = header.kind == format.KIND_LEARNED
    # Where the plan is, its size, and the entries of the parts: what is followed or believed.
    directory = DIRECTORY.size + 6 * PART.size if learned else 64
    plan_at, n_plan = DIRECTORY.unpack_from(payload)[-3:-1] if learned else (0, len(payload))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        what = rng.randrange(8)
        if what == 0:
            params = list(values["params"])
            params[rng.randrange(len(params))] = rng.choice((*NUMBERS, len(payload), rng.getrandbits(64)))
            values["params"] = tuple(params)
        elif what == 1:
            values["n_items"] = rng.choice(NUMBERS)
        elif what == 2:
            payload = (
                payload[: rng.randrange(len(payload) + 1)]
                if rng.random() < 0.5
                else payload + rng.randbytes(rng.randrange(1, 100))
            )
            if learned and rng.random() < 0.8:
                values["params"] = (*values["params"][:3], len(payload), *values["params"][4:])
        elif not payload:
            continue
        elif what == 3:
            payload[rng.randrange(len(payload))] ^= 1 << rng.randrange(8)
        elif what == 4 and n_plan:
            at = min(plan_at + rng.randrange(n_plan), len(payload) - 1)
            payload[at] = rng.choice(b'0e-.[{"},: nNx\x00\xff')
        else:
            # A field of the directory, or of a table's head.
            width, code = rng.choice(((4, "<I"), (8, "<Q")))
            at = rng.randrange(0, max(1, min(directory, len(payload)) - width), 4)
            number = rng.choice((*NUMBERS, len(payload), rng.randrange(len(payload) + 1), rng.getrandbits(8 * width)))
            struct.pack_into(code, payload, at, number % 2 ** (8 * width)) if len(payload) >= at + width else None
    return format.pack(format.Header(**values), payload)


def use(f, writable: bool) -> None:
    """Everything that follows what the file says."""
    for action in (
        lambda: f.contains_many(KEYS[:50]),
        lambda: (repr(f), len(f), f.fill, f.approximate_count(), f.expected_fpr, f.bits_per_key),
        lambda: f.update(KEYS[50:60]) if writable else None,
        lambda: f.remove_many(KEYS[:60]) if writable and f.DELETABLE else None,
        f.to_bytes,
    ):
        with contextlib.suppress(dlbf.DlbfError):
            action()


def forge_and_open(name: str, n: int, path, seed: int = 0) -> int:
    """How many of ``n`` forged files were refused."""
    whole = example(name)
    secret = SECRETS.get(name)
    rng = random.Random(f"{name} {seed}")
    refused = 0
    for number in range(n):
        data = forged(whole, rng)
        for mode in ("r", "r+"):
            path.write_bytes(data)
            error = None
            try:
                with dlbf.open_filter(path, mode, secret=secret) as f:
                    use(f, mode == "r+")
            except dlbf.DlbfError as raised:
                error = raised
            if error is not None:
                # The error lives, as in a program that reports it later: neither lock nor map may live with it.
                refused += mode == "r"
                assert str(path) in str(error), f"{name} {number}: no file named in {error!r}"
                assert str(path) not in MAPS.read_text(), f"{name} {number}: mapped after {error!r}"
                path.write_bytes(whole)
                dlbf.open_filter(path, "r+", secret=secret).close()
    return refused


@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
@pytest.mark.parametrize("name", MAKERS)
def test_forged_file_is_refused_and_let_go_or_works(name, tmp_path):
    assert forge_and_open(name, 25, tmp_path / "forged") > 0


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
@pytest.mark.parametrize("name", MAKERS)
def test_many_forged_files_are_refused_and_let_go_or_work(name, tmp_path):
    assert 0 < forge_and_open(name, 2000, tmp_path / "forged", seed=1) < 2000
