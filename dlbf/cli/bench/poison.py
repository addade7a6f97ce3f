"""``dlbf bench poison``: how far junk in the traffic gets."""

import click

from dlbf.bench.timing import machine
from dlbf.cli.bench.options import counted
from dlbf.cli.bench.output import number, table, wide_console, write_json, write_machine
from dlbf.cli.console import terminal

__all__ = ["command"]

HEADINGS = ("junk", "share", "deletability", "cap", "negatives", "bits/key", "ordinary queries")


@click.command("poison")
@click.option("--data", type=click.Path(exists=True, file_okay=False), help="Folder of real URL sets (or DLBF_DATA).")
@counted("--keys", "n_keys", default=20_000, least=1000, help="Keys in the store.")
@counted("--reads", "n_reads", default=160_000, least=10_000, help="Absent reads before the rebuild.")
@click.option(
    "--share", "shares", multiple=True, type=click.FloatRange(0, 0.99), help="Share of junk; may be repeated."
)
@click.option("--junk", "kinds", multiple=True, help="Only this kind of junk; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Figures for a machine, on standard output.")
def command(
    data: str | None, n_keys: int, n_reads: int, shares: tuple[float, ...], kinds: tuple[str, ...], as_json: bool
) -> None:
    """Rebuild stores from traffic with junk in it, and measure the rate of the other queries."""
    from dlbf.bench.poisoning import JUNK, poisoned

    for kind in kinds:
        if kind not in JUNK:
            raise click.BadParameter(f"{kind!r} is none of {', '.join(JUNK)}", param_hint="--junk")
    with terminal(stderr=True).status("reading keys") as status:
        words, rows = poisoned(data, n_keys, n_reads, shares or (0.9,), kinds or tuple(JUNK), status.update)
    cells = [
        (
            row.junk, f"{row.share:.0%}", f"{row.deletability:g}", f"{row.adversarial_fpr:g}", f"{row.negatives:,}",
            number(row.bits_per_key, 2), f"{row.ordinary:.2f} x",
        )
        for row in rows
    ]  # fmt: skip
    about = f"stores rebuilt after {n_reads:,} absent reads, some of them junk; target 1 %; {words}"
    if as_json:
        tables = {"poison": {"headings": HEADINGS, "rows": cells}}
        write_json({"machine": machine(), "data": about, "poison": rows, "tables": tables})
        return
    shown = table(about, HEADINGS, left=("junk",))
    for line in cells:
        shown.add_row(*line)
    wide_console().print(shown)
    write_machine(machine())
