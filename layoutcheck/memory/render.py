"""A ledger as text: the table, the bars, the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from layoutcheck.memory.ledger import CATEGORIES, Ledger
from layoutcheck.memory.verdict import Option, Verdict
from layoutcheck.units import GIB, human

_BAR = 48


def table(ledger: Ledger, all_lines: bool = False, smallest: int = GIB // 1000) -> str:
    """Return the ledger as a table by category; lines below ``smallest`` bytes are summed up.

    With ``all_lines`` every line is shown, with its formula.
    """
    rows: list[str] = [ledger.title, f"rank {ledger.rank}", ""]
    for category, size in ledger.by_category().items():
        rows.append(f"{size / GIB:12.4f} GiB  {category}: {CATEGORIES[category]}")
        lines = [line for line in ledger.lines if line.category == category and line.state == "resident"]
        shown = [line for line in lines if all_lines or line.bytes >= smallest]
        for line in sorted(shown, key=lambda x: -x.bytes):
            scheme = "" if line.scheme == "FLOAT" else f", {line.scheme}"
            rows.append(
                f"{line.bytes / GIB:14.4f}        {line.name}  {line.count} x {line.dtype} {line.shape}, "
                f"{line.split}{scheme}"
            )
            if all_lines:
                rows.append(f"{'':22}= {line.formula} = {line.bytes} bytes")
            if line.note:
                rows.append(f"{'':22}{line.note}")
        if rest := [line for line in lines if line not in shown]:
            total = sum(line.bytes for line in rest)
            rows.append(f"{total / GIB:14.4f}        {len(rest)} more, each below {smallest} bytes")
    rows.append(f"{ledger.total() / GIB:12.4f} GiB  in all, {ledger.total()} bytes")
    if freed := ledger.total(state="load"):
        rows.append(f"{freed / GIB:12.4f} GiB  more while loading, freed afterwards:")
        rows += [f"{x.bytes / GIB:14.4f}        {x.name}" for x in ledger.lines if x.state == "load"]
    if ledger.loading_peak:
        rows.append(f"{ledger.loading_peak / GIB:12.4f} GiB  at most while loading and converting")
    rows += _notes(ledger.notes)
    return "\n".join(rows)


def _notes(notes: Iterable[str]) -> list[str]:
    return [f"note: {note}" for note in notes]


def bars(ledger: Ledger, capacity: int | None = None) -> str:
    """Return one bar a category; the widest is the largest category, or the capacity if one is given."""
    sums = ledger.by_category()
    widest = max([*sums.values(), 1])
    scale = max(capacity or 0, widest)
    rows = [f"{name:18} {'█' * max(1, size * _BAR // scale)} {human(size)}" for name, size in sums.items()]
    if capacity:
        free = max(0, capacity - ledger.total())
        rows.append(f"{'free':18} {'░' * (free * _BAR // scale)} {human(free)}")
    return "\n".join(rows)


def verdict_text(verdict: Verdict, bandwidth: float | None = None) -> str:
    """Return the verdict as text; with a bandwidth (bytes a second), options carry their time a step."""
    state = "fits" if verdict.fits else "does not fit"
    rows = [
        f"{state}: {human(verdict.used)} of {human(verdict.capacity)}, "
        f"{human(abs(verdict.slack))} {'free' if verdict.slack >= 0 else 'too much'}",
        f"while loading: {human(abs(verdict.loading_slack))} "
        f"{'free' if verdict.loading_slack >= 0 else 'too much'}",
        f"cached tokens that fit: {verdict.most_tokens}",
    ]
    if verdict.most_sequences is not None:
        rows.append(f"sequences of that length that fit: {verdict.most_sequences}")
    if verdict.step_symbol is not None:
        rows.append(f"largest {verdict.step_symbol} of a step that fits: {verdict.most_step}")
    rows += options_text(verdict.options, bandwidth)
    return "\n".join(rows)


def options_text(options: Iterable[Option], bandwidth: float | None = None) -> list[str]:
    """Return a line an option; with a bandwidth (bytes a second) it carries its time a step."""
    rows = []
    for option in options:
        cost = option.cost
        if option.wire_bytes:
            cost += f": {option.wire_bytes / GIB:.3f} GiB a step"
            if bandwidth:
                cost += f", {option.wire_bytes / bandwidth * 1e3:.2f} ms at {bandwidth / 1e9:g} GB/s"
        if option.time_us is not None:
            cost += f"; {option.time_us / 1e3:+.2f} ms a step"
        rows.append(f"  {human(option.saving)} less: {option.change} ({cost})")
    return rows
