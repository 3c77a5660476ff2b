"""A user's own measured kernel times: read from CSV or Parquet, interpolated inside their range, and only
there.

Which columns mean what is data, a JSON file beside the table or an option::

    {"format": "layoutcheck-tables/1",
     "tables": [{"file": "gemm.csv", "kernel": "gemm", "where": {"dtype": "bfloat16"},
                 "variant": "bfloat16", "exact": {"n": "n", "k": "k"}, "along": {"m": "m"},
                 "time": "measured_us", "unit": "us"}]}

``exact`` and ``along`` map a size of the kernel's formula to a column. A lookup needs a row with the same
``exact`` sizes; in the ``along`` sizes it is interpolated between neighbours, as a power law (straight in
logarithms). With several of them, all corners of the cell must be there. Whatever lies outside is left to
the formula, and the report says so.
"""

from __future__ import annotations

import csv
import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError

FORMAT = "layoutcheck-tables/1"
MAX_ROWS = 5_000_000
"""Rows of one file: what it unpacks to is bounded, however small it is."""

_UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


@frozen
class Table:
    """Measured microseconds of one kernel class by its sizes.

    Attributes:
        kernel, variant: the class, as in the hardware files.
        exact: sizes that must be equal, in the order of the keys of ``points``.
        along: sizes that are interpolated.
        points: by exact sizes, by along sizes, the time.
    """

    name: str
    kernel: str
    variant: str
    exact: tuple[str, ...]
    along: tuple[str, ...]
    points: Mapping[tuple[float, ...], Mapping[tuple[float, ...], float]]

    def lookup(self, sizes: Mapping[str, float]) -> float | None:
        """Return the time at these sizes, None where the table does not reach or a size is missing."""
        try:
            key = tuple(float(sizes[n]) for n in self.exact)
            at = tuple(float(sizes[n]) for n in self.along)
        except KeyError:
            return None
        cell = self.points.get(key)
        return None if cell is None else _interpolate(cell, at)


@frozen
class Timing:
    """A time and where it came from: the name of a table, or ``formula``."""

    us: float
    source: str


@define
class Measured:
    """A user's tables, and what they were used for so far."""

    tables: Sequence[Table] = ()
    used: dict[str, float] = field(factory=lambda: defaultdict(float))
    """Microseconds by source, summed over all calls of :meth:`time`."""

    def time(
        self,
        kernel: str,
        variant: str,
        sizes: Mapping[str, float],
        formula: Callable[[], float],
        count: float = 1,
    ) -> Timing:
        """Return a kernel's time from the first table that reaches it, else from the formula.

        Args:
            kernel, variant: the class.
            sizes: by the names that the kernel's formula uses.
            formula: computes the time if no table has it.
            count: how often the kernel runs, for the shares.
        """
        for table in self.tables:
            if (table.kernel, table.variant) == (kernel, variant):
                found = table.lookup(sizes)
                if found is not None:
                    self.used[table.name] += count * found
                    return Timing(found, table.name)
        us = float(formula())
        self.used["formula"] += count * us
        return Timing(us, "formula")

    def shares(self) -> dict[str, float]:
        """Return the share of the summed time by source, the largest first."""
        total = sum(self.used.values())
        ordered = sorted(self.used.items(), key=lambda item: -item[1])
        return {name: us / total for name, us in ordered} if total else {}

    def unused(self) -> list[str]:
        """Return the names of tables that no kernel asked for, or none at a size inside their range."""
        return [name for name in dict.fromkeys(t.name for t in self.tables) if name not in self.used]


def load_tables(path: Path) -> Measured:
    """Read a mapping file and the tables that it names, relative to itself.

    Raises:
        InputError: a file cannot be read, a column is missing, or a cell is not a number.
    """
    data = read_document(path, "a mapping of tables", form=FORMAT)
    if not isinstance(data.get("tables"), list):
        raise InputError("`tables` is no list", where=str(path))
    return Measured([_table(entry, path) for entry in data["tables"]])


def _table(entry: Any, path: Path) -> Table:
    try:
        file, kernel, time = str(entry["file"]), str(entry["kernel"]), str(entry["time"])
        exact, along = dict(entry.get("exact", {})), dict(entry["along"])
        where, variant = dict(entry.get("where", {})), str(entry.get("variant", "bfloat16"))
        unit = _UNITS[entry.get("unit", "us")]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a table's entry lacks or mistakes {error}", where=str(path)) from error
    if not along:
        raise InputError("a table needs a size to interpolate along", where=str(path))
    source = path.parent / file
    rows = [r for r in _rows(source) if all(str(r[1].get(c)) == str(v) for c, v in where.items())]
    if not rows:
        raise InputError(f"no row has {where}" if where else "no rows", where=str(source))
    return build_table(
        f"{source.name}:{kernel}/{variant}", kernel, variant, exact, along, time, unit, rows, str(source)
    )


def build_table(
    name: str,
    kernel: str,
    variant: str,
    exact: Mapping[str, str],
    along: Mapping[str, str],
    time: str,
    unit: float,
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    where: str = "",
) -> Table:
    """Build a table from numbered rows; of rows with the same sizes the median counts.

    Raises:
        InputError: a column is missing, or a cell is not a positive number.
    """
    times: dict[tuple[float, ...], dict[tuple[float, ...], list[float]]]
    times = defaultdict(lambda: defaultdict(list))
    for line, row in rows:
        key = tuple(_number(row, column, line, where) for column in exact.values())
        at = tuple(_number(row, column, line, where) for column in along.values())
        value = _number(row, time, line, where) * unit
        if value <= 0:
            raise InputError(f"line {line}: {time} is {row[time]}, not a time", where=where)
        times[key][at].append(value)
    points = {
        key: {at: statistics.median(values) for at, values in cell.items()} for key, cell in times.items()
    }
    return Table(name, kernel, variant, tuple(exact), tuple(along), points)


def _number(row: Mapping[str, Any], column: str, line: int, where: str) -> float:
    if column not in row:
        raise InputError(f"no column {column!r}; there are {', '.join(map(str, row))}", where=where)
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise InputError(f"line {line}: {column} is {row[column]!r}, not a number from 0 up", where=where)
    return value


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows with their line in the file (of a Parquet file, their place)."""
    if path.suffix == ".parquet":
        numbered: Iterator[tuple[int, dict[str, Any]]] = enumerate(_parquet(path), start=1)
    else:
        numbered = _csv(path)
    for count, (line, row) in enumerate(numbered):
        if count == MAX_ROWS:
            raise InputError(f"has more than {MAX_ROWS} rows", where=str(path))
        yield line, row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows batch by batch: what a file unpacks to is bounded by the rows that are asked for."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(
            "reading Parquet needs pyarrow: pip install 'layoutcheck[tables]'", where=str(path)
        ) from error
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                yield from batch.to_pylist()
    except Exception as error:  # pyarrow has its own errors, and reads what users give
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


def _interpolate(cell: Mapping[tuple[float, ...], float], at: tuple[float, ...]) -> float | None:
    found = cell.get(at)
    if found is not None:
        return found
    first, rest = at[0], at[1:]
    known = sorted({p[0] for p in cell})
    if not known[0] <= first <= known[-1]:
        return None
    place = bisect_left(known, first)
    if known[place] == first:
        return _slice(cell, first, rest)
    low, high = known[place - 1], known[place]
    a, b = _slice(cell, low, rest), _slice(cell, high, rest)
    if a is None or b is None:
        return None
    if low <= 0:  # no logarithm: straight
        return a + (b - a) * (first - low) / (high - low)
    share = math.log(first / low) / math.log(high / low)
    return math.exp(math.log(a) * (1 - share) + math.log(b) * share)


def _slice(cell: Mapping[tuple[float, ...], float], first: float, rest: tuple[float, ...]) -> float | None:
    """Look up the remaining sizes among the points whose first size is ``first``."""
    if not rest:
        return cell.get((first,))
    inner = {p[1:]: t for p, t in cell.items() if p[0] == first}
    return _interpolate(inner, rest) if inner else None
