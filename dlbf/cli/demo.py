"""``dlbf demo``: the main job, end to end, in under a minute."""

import json
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.table import Table

from dlbf.cli.console import terminal
from dlbf.cli.stores import EXIT_NO
from dlbf.datasets import listed_urls, ordinary_urls

if TYPE_CHECKING:
    from dlbf.storage import Store

__all__ = ["command"]

LOOKUPS_PER_KEY = 5
ABSENT_SHARE = 0.8
# Absent keys that the rates are measured on, for each key stored: at the default size four times the chance error of a
# rate of 1 % is 6 % of it, and no filter is planned to have more than its target.
MEASURED_PER_KEY = 4
TIMED_KEYS = 20_000
ROUNDS = 5
# Deleted keys that are asked for again, twice: enough to see what share costs a read, few beside the other lookups.
ASKED_AGAIN = 1_000
HALF_WRITTEN = 5_000
NOTE_COLUMNS = 68

# The writer that is killed: it has put its keys and has not committed them.
DOOMED_WRITER = """
import sys
from dlbf.storage import Store
with Store(sys.argv[1]) as store, store.write() as txn:
    for i in range(int(sys.argv[2])):
        txn.put(b"half-written %d" % i, b"never committed")
    print("in the middle", flush=True)
    sys.stdin.read()
"""


@click.command("demo")
@click.option(
    "--keys", "n_keys", type=click.IntRange(min=1000), default=100_000, show_default=True, help="Keys to make."
)
@click.option("--fpr", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.01, show_default=True,
              help="Target rate of false positives.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, (1 << 31) - 1), default=0, show_default=True,
              help="Another seed makes other keys, of the same kind.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path), metavar="PATH", help="Leave the store here afterwards.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(n_keys: int, fpr: float, seed: int, keep: Path | None, as_json: bool) -> None:
    """Fill a store, serve traffic, learn from it, delete, crash a writer, recover, verify.

    The keys are URLs made here (dlbf.datasets): those of a block list are stored, and those of ordinary traffic are
    asked for.  Some of them teach the model; rates and times are measured on others, drawn from the same stream.
    Nothing is downloaded, and nothing is left behind without --keep.
    """
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"learning needs the [train] extra ({error}); install it with: pip install 'dlbf[train]'"
        ) from error
    if keep is not None and keep.exists():
        raise click.ClickException(f"{keep}: there is something there already; name a new path with --keep")
    teller = Teller(as_json)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store" if keep is None else keep
        figures = Demo(path, Path(folder), n_keys, fpr, seed, teller).run()
    if as_json:
        click.echo(json.dumps(figures, indent=2))
    else:
        teller.end(figures, keep)
    if not figures["ok"]:
        sys.exit(EXIT_NO)


class Teller:
    """Tells a person what happens, a line a step; nothing if a machine listens."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._console = terminal(highlight=False)
        self._number = 0

    def start(self, n_keys: int) -> None:
        """The first line."""
        if not self._silent:
            self._console.print(f"A store of {n_keys:,} listed URLs, asked mostly for URLs that it does not have.\n")

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[Callable[[str], None]]:
        """A step; call what it gives with the outcome."""
        self._number += 1
        started = time.perf_counter()
        outcome: list[str] = []
        if self._silent:
            yield outcome.append
            return
        with self._console.status(f"{self._number} {name}: {doing}"):
            yield outcome.append
        seconds = time.perf_counter() - started
        self._console.print(
            f"[bold]{self._number} {name:<8}[/] {outcome[0]:<60}[dim]{seconds:5.1f} s[/]", soft_wrap=True
        )
        for line in outcome[1:]:
            self._console.print(f"{'':10} {line}", soft_wrap=True)

    def table(self, rows: Sequence["Row"], fpr: float, n_measured: int) -> None:
        """What stands in front of the data, side by side, and how to read it."""
        if self._silent:
            return
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
        for heading in ("in front of the data", "bits/key", "let through", "ns/get", "safe in a crash"):
            table.add_column(heading, justify="left" if heading.startswith("in ") else "right", no_wrap=True)
        for row in rows:
            table.add_row(
                row.name, f"{row.bits_per_key:.1f}", f"{row.fpr:.2%}", f"{row.ns_per_absent_get:,.0f}",
                row.safe, style="bold" if row is rows[-1] else None,
            )  # fmt: skip
        self._console.print()
        self._console.print(table)
        plain, learned = rows[-2:]
        self._console.print(f"\nLet through: of {n_measured:,} absent URLs never seen before; the target is {fpr:.2%}.")
        if learned.model_bytes:
            saved = plain.bits_per_key - learned.bits_per_key
            longer = learned.ns_per_absent_get - plain.ns_per_absent_get
            self._console.print(
                f"A learned get judges the whole key before it asks a filter: {longer:,.0f} ns more,\n"
                f"for {saved:.1f} bits per key less than before learning."
            )
        self._console.print()

    def end(self, figures: dict[str, Any], keep: Path | None) -> None:
        """The last lines."""
        nothing, counting, *_, learned = figures["rows"]
        share = learned["bits_per_key"] / counting["bits_per_key"]
        faster = nothing["ns_per_absent_get"] / learned["ns_per_absent_get"]
        if figures["ok"]:
            self._console.print(
                f"\nAbsent keys are answered {faster:.1f} times as fast as by LMDB alone.  The filter takes\n"
                f"{share:.0%} of the bits of 4-bit counters.  No key was lost.  {figures['seconds']:.0f} s in all."
            )
        else:
            self._console.print("\n[bold red]Something is wrong, see above.[/]")
        if keep is not None:
            self._console.print(f"\nThe store is at {keep}; try: dlbf info {keep}, dlbf scan {keep} --limit 5")


class Row(NamedTuple):
    """What stands in front of the data, and what it does."""

    name: str
    bits_per_key: float
    model_bytes: int
    fpr: float
    ns_per_absent_get: float
    safe: str


class Demo:
    """The steps."""

    def __init__(self, path: Path, folder: Path, n_keys: int, fpr: float, seed: int, teller: Teller) -> None:
        self.path = path
        self.folder = folder
        self.n_keys = n_keys
        self.fpr = fpr
        self.seed = seed
        # One stream for learning, measuring and timing: drawn alike, and no key twice.
        self.absent = ordinary_urls(1 << 32, seed)
        self.tell = teller
        self.figures: dict[str, Any] = {"keys": n_keys, "fpr_target": fpr, "seed": seed}

    def run(self) -> dict[str, Any]:
        """All of them; returns the figures."""
        from dlbf.storage import Store

        started = time.perf_counter()
        self.tell.start(self.n_keys)
        with Store(self.path, self.fpr) as store:
            keys = self.fill(store)
            self.serve(store, keys)
            store.backup(self.folder / "before")
            self.learn(store)
            self.compare(store, keys)
            kept = self.delete(store, keys)
            self.crash(store)
            self.recover(store, kept)
            self.verify(store)
        self.figures["seconds"] = time.perf_counter() - started
        figures = self.figures
        figures["ok"] = bool(figures["verified"] and not figures["lost_keys"] and not figures["half_written_seen"])
        return figures

    def fill(self, store: "Store") -> list[bytes]:
        """Make keys and store them."""
        with self.tell.step("fill", "making keys and storing them") as done:
            keys = list(listed_urls(self.n_keys, self.seed))
            for first in range(0, len(keys), 10_000):
                store.update((key, b"listed") for key in keys[first : first + 10_000])
            done(f"{len(keys):,} keys into a new store, 10,000 a transaction")
        return keys

    def serve(self, store: "Store", keys: list[bytes]) -> None:
        """Answer lookups, four in five of absent keys."""
        with self.tell.step("serve", "looking up keys") as done:
            n_absent = int(LOOKUPS_PER_KEY * ABSENT_SHARE * self.n_keys)
            get = store.get
            for key in islice(self.absent, n_absent):
                get(key)
            for _ in range(LOOKUPS_PER_KEY - int(LOOKUPS_PER_KEY * ABSENT_SHARE)):
                for key in keys:
                    get(key)
            stats = store.stats()
            answered = stats.filtered / max(1, stats.filtered + stats.false_positives)
            self.figures["served"] = {"lookups": stats.lookups, "absent": n_absent, "filtered": stats.filtered}
            done(f"{stats.lookups:,} lookups, {ABSENT_SHARE:.0%} absent; the filter answered {answered:.1%}")

    def learn(self, store: "Store") -> None:
        """Rebuild from the keys and the misses of the step before."""
        with self.tell.step("learn", "training on the keys and on a sample of what was asked for and absent") as done:
            report = store.rebuild()
            self.figures["rebuild"] = report.asdict()
            stats = store.stats()
            if stats.model_bytes:
                done(f"a model of {stats.model_bytes:,} bytes, from the keys and {report.negatives:,} sampled misses")
            else:
                done("no model")
                for line in textwrap.wrap("; ".join(report.notes), NOTE_COLUMNS):
                    done(line)

    def compare(self, store: "Store", keys: list[bytes]) -> None:
        """Size, rate and speed beside no filter and a counting Bloom filter."""
        with self.tell.step("compare", "asking everybody for the same absent keys") as done:
            store.backup(self.folder / "plain")
            unseen = list(islice(self.absent, MEASURED_PER_KEY * self.n_keys))
            rows = self._measure(store, keys, unseen)
            self.figures["rows"] = [row._asdict() for row in rows]
            done(f"the best of {ROUNDS} rounds in turn, each of fresh absent keys")
        self.tell.table(rows, self.fpr, len(unseen))

    def _measure(self, store: "Store", keys: list[bytes], unseen: list[bytes]) -> list["Row"]:
        """One row for each that is compared."""
        import lmdb

        import dlbf
        from dlbf.bench.timing import side_by_side
        from dlbf.storage import Store

        counting = dlbf.CountingBloomFilter(self.n_keys, self.fpr, counter_bits=4)
        counting.update(keys)
        env = lmdb.open(str(self.folder / "plain"), readonly=True, max_dbs=16)
        data = env.open_db(b"data", create=False)
        begin = env.begin

        def bare(batch: Sequence[bytes]) -> None:
            for key in batch:
                with begin() as txn:
                    txn.get(key, db=data)

        def counted(batch: Sequence[bytes]) -> None:
            for key in batch:
                if key in counting:
                    with begin() as txn:
                        txn.get(key, db=data)

        last = "Store, learned" if store.stats().model_bytes else "Store, rebuilt"
        with env, Store(self.folder / "before", readonly=True) as before:
            # Everything in memory, for everybody: fresh copies would pay for their first touch.
            with begin() as txn:
                sum(1 for _ in txn.cursor(data))
            for each in (before, store):
                sum(1 for _ in each.items())
            contenders = {
                "nothing (py-lmdb)": (bare, 0, 0, 1.0, "-"),
                "counting Bloom, 4 bits": (
                    counted, counting.nbytes, 0, float(counting.contains_many(unseen).mean()), "no",
                ),
                "Store, before learning": (
                    _getter(before), before.stats().filter_bytes, 0, _passed(before, unseen), "yes",
                ),
                last: (
                    _getter(store), store.stats().filter_bytes, store.stats().model_bytes, _passed(store, unseen),
                    "yes",
                ),
            }  # fmt: skip
            times = side_by_side(
                {name: contender[0] for name, contender in contenders.items()},
                lambda turn: list(islice(self.absent, min(TIMED_KEYS, self.n_keys))),
                ROUNDS,
            )
        return [
            Row(name, 8 * (filter_bytes + model_bytes) / self.n_keys, model_bytes, rate, times[name].best, safe)
            for name, (_, filter_bytes, model_bytes, rate, safe) in contenders.items()
        ]

    def delete(self, store: "Store", keys: list[bytes]) -> list[bytes]:
        """Take a tenth out."""
        with self.tell.step("delete", "deleting a tenth") as done:
            gone, kept = keys[: self.n_keys // 10], keys[self.n_keys // 10 :]
            with store.write() as txn:
                for key in gone:
                    txn.delete(key)
            asked = gone[:ASKED_AGAIN]
            first, second = 1 - _passed(store, asked), 1 - _passed(store, asked)
            self.figures["deleted"] = {
                "keys": len(gone), "asked_again": len(asked), "answered_by_filter": first, "the_second_time": second,
            }  # fmt: skip
            done(f"{len(gone):,} keys; {1 - first:.0%} cost a read if asked for, {1 - second:.0%} if asked again")
        return kept

    def crash(self, store: "Store") -> None:
        """Kill another process in the middle of a transaction."""
        with self.tell.step("crash", "starting a writer, to kill it") as done:
            arguments = [sys.executable, "-c", DOOMED_WRITER, str(self.path), str(HALF_WRITTEN)]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                if process.stdout.readline() != b"in the middle\n":
                    process.kill()
                    raise click.ClickException("the writer that was to be killed did not start; see its message above")
                process.kill()
            done(f"a process killed (SIGKILL) after {HALF_WRITTEN:,} puts, before commit")

    def recover(self, store: "Store", kept: list[bytes]) -> None:
        """Go on writing and reading."""
        with self.tell.step("recover", "writing and reading on") as done:
            started = time.perf_counter()
            store[b"written after the crash"] = b""
            waited = 1000 * (time.perf_counter() - started)
            lost = sum(value is None for value in store.get_many(kept))
            # The traffic goes on: it is not of deleted keys alone.
            store.get_many(list(islice(self.absent, self.n_keys)))
            seen = len(store.keys(prefix=b"half-written"))
            self.figures |= {"lost_keys": lost, "half_written_seen": seen, "write_after_crash_ms": waited}
            done(f"next write in {waited:.1f} ms; {lost:,} of {len(kept):,} keys lost, {seen:,} half-written")

    def verify(self, store: "Store") -> None:
        """Compare every key with the filter."""
        with self.tell.step("verify", "comparing every key with the filter") as done:
            report = store.verify()
            self.figures["verified"] = report.ok
            outcome = "ok" if report.ok else "; ".join(report.problems)
            done(f"{report.keys:,} keys against the filter: {report.missing} missing, {report.extra} extra; {outcome}")


def _getter(store: "Store") -> Callable[[Sequence[bytes]], None]:
    def run(batch: Sequence[bytes]) -> None:
        get = store.get
        for key in batch:
            get(key)

    return run


def _passed(store: "Store", absent: list[bytes]) -> float:
    """Share of absent keys that the filter lets through to the data."""
    before = store.stats()
    store.get_many(absent)
    after = store.stats()
    return 1.0 - int(after.filtered - before.filtered) / len(absent)
