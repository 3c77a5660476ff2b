"""A user's measured tables: inside their range they win, outside the formula does, and the shares say so."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.cost.tables import Measured, Table, load_tables
from layoutcheck.errors import InputError

CSV = """dtype,m,n,k,ms
bfloat16,16,512,256,0.010
bfloat16,64,512,256,0.020
bfloat16,64,512,256,0.024
bfloat16,64,512,256,0.022
bfloat16,256,512,256,0.060
int8,16,512,256,0.004
"""


def mapping(**changes: Any) -> dict[str, Any]:
    entry = {
        "file": "times.csv",
        "kernel": "gemm",
        "variant": "bfloat16",
        "where": {"dtype": "bfloat16"},
        "exact": {"n": "n", "k": "k"},
        "along": {"m": "m"},
        "time": "ms",
        "unit": "ms",
    }
    return {"format": "layoutcheck-tables/1", "tables": [{**entry, **changes}]}


def read(folder: Path, content: str = CSV, **changes: Any) -> Measured:
    (folder / "times.csv").write_text(content)
    (folder / "tables.json").write_text(json.dumps(mapping(**changes)))
    return load_tables(folder / "tables.json")


def test_a_measured_point_is_the_median_of_its_rows(tmp_path: Path) -> None:
    found = read(tmp_path).time("gemm", "bfloat16", {"m": 64, "n": 512, "k": 256}, lambda: 1e9)
    assert found.us == pytest.approx(22.0)
    assert found.source == "times.csv:gemm/bfloat16"


def test_between_points_it_is_a_power_law(tmp_path: Path) -> None:
    found = read(tmp_path).time("gemm", "bfloat16", {"m": 32, "n": 512, "k": 256}, lambda: 1e9)
    assert found.us == pytest.approx((10.0 * 22.0) ** 0.5)  # 32 is the geometric mean of 16 and 64


@pytest.mark.parametrize(
    ("kernel", "variant", "sizes"),
    [
        ("gemm", "bfloat16", {"m": 8, "n": 512, "k": 256}),
        ("gemm", "bfloat16", {"m": 257, "n": 512, "k": 256}),
        ("gemm", "bfloat16", {"m": 64, "n": 513, "k": 256}),
        ("gemm", "bfloat16", {"m": 64}),
        ("gemm", "int8", {"m": 64, "n": 512, "k": 256}),
        ("norm", "bfloat16", {"m": 64, "n": 512, "k": 256}),
    ],
)
def test_outside_the_formula_is_used(
    tmp_path: Path, kernel: str, variant: str, sizes: dict[str, int]
) -> None:
    found = read(tmp_path).time(kernel, variant, sizes, lambda: 7.0)
    assert (found.us, found.source) == (7.0, "formula")


def test_shares_count_time_and_repeats(tmp_path: Path) -> None:
    tables = read(tmp_path)
    tables.time("gemm", "bfloat16", {"m": 16, "n": 512, "k": 256}, lambda: 0.0, count=3)  # 30 us
    tables.time("norm", "bfloat16", {"m": 16}, lambda: 5.0, count=2)  # 10 us
    assert tables.shares() == pytest.approx({"times.csv:gemm/bfloat16": 0.75, "formula": 0.25})
    assert list(tables.shares()) == ["times.csv:gemm/bfloat16", "formula"]
    assert Measured().shares() == {}


def test_two_sizes_are_interpolated_inside_full_cells_only() -> None:
    corners = {(1.0, 1.0): 1.0, (1.0, 4.0): 4.0, (4.0, 1.0): 4.0, (4.0, 4.0): 16.0}
    table = Table("t", "attention", "bfloat16", (), ("batch", "keys"), {(): corners})
    assert table.lookup({"batch": 2, "keys": 2}) == pytest.approx(4.0)
    assert table.lookup({"batch": 4, "keys": 2}) == pytest.approx(8.0)
    assert table.lookup({"batch": 2, "keys": 5}) is None
    holed = Table("t", "attention", "bfloat16", (), ("batch", "keys"), {(): dict(list(corners.items())[:3])})
    assert holed.lookup({"batch": 2, "keys": 2}) is None
    assert holed.lookup({"batch": 1, "keys": 2}) == pytest.approx(2.0)


@given(
    st.dictionaries(st.integers(0, 1000), st.floats(0.1, 1e6), min_size=2, max_size=8),
    st.integers(0, 1000),
)
def test_an_interpolated_time_lies_between_its_neighbours(points: dict[int, float], at: int) -> None:
    table = Table("t", "k", "v", (), ("m",), {(): {(float(m),): t for m, t in points.items()}})
    found = table.lookup({"m": at})
    if not min(points) <= at <= max(points):
        assert found is None
        return
    assert found is not None
    below = points[max(m for m in points if m <= at)]
    above = points[min(m for m in points if m >= at)]
    assert min(below, above) * (1 - 1e-12) <= found <= max(below, above) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (CSV, {"time": "us"}, "no column 'us'; there are dtype, m, n, k, ms"),
        (CSV, {"where": {"dtype": "fp8"}}, "no row has"),
        (CSV, {"unit": "fortnight"}, "lacks or mistakes 'fortnight'"),
        (CSV, {"along": {}}, "needs a size to interpolate along"),
        (CSV, {"file": "nowhere.csv"}, "cannot be read"),
        (CSV.replace("0.060", "fast"), {}, "line 6: ms is 'fast', not a number"),
        (CSV.replace("0.060", "0"), {}, "line 6: ms is 0, not a time"),
        (CSV.replace("0.060", "nan"), {}, "line 6: ms is 'nan', not a number"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, content: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, content, **changes)


def test_a_mapping_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tables.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match="not a mapping of tables"):
        load_tables(tmp_path / "tables.json")


def _columns(content: str) -> dict[str, list[Any]]:
    """A CSV's columns, numbers as numbers."""

    def value(text: str) -> Any:
        try:
            return int(text) if text.isdigit() else float(text)
        except ValueError:
            return text

    rows = list(csv.DictReader(io.StringIO(content)))
    return {name: [value(row[name]) for row in rows] for name in rows[0]}


@pytest.mark.parametrize("row_group", [1, 3, 1000])
def test_parquet_reads_as_csv(tmp_path: Path, row_group: int) -> None:
    """The same rows in both forms give the same times, inside the range and outside."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    plain = read(tmp_path, CSV)
    (tmp_path / "tables.json").write_text(json.dumps(mapping(file="times.parquet")))
    parquet.write_table(pa.table(_columns(CSV)), tmp_path / "times.parquet", row_group_size=row_group)
    tables = load_tables(tmp_path / "tables.json")
    for m in (1, 16, 17, 40, 64, 100, 4096):
        at = {"m": m, "n": 512, "k": 256}
        found, same = (t.time("gemm", "bfloat16", at, lambda: 7.0) for t in (tables, plain))
        assert found.us == same.us
        assert found.source == same.source.replace(".csv", ".parquet")


def test_parquet_without_pyarrow_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "tables.json").write_text(json.dumps(mapping(file="times.parquet")))
    (tmp_path / "times.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"pip install 'layoutcheck\[tables\]'"):
        load_tables(tmp_path / "tables.json")


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "tables.json").write_text(json.dumps(mapping(file="times.parquet")))
    parquet.write_table(pa.table(_columns(CSV)), tmp_path / "times.parquet")
    whole = (tmp_path / "times.parquet").read_bytes()
    for damaged in (b"", whole[:40], whole[:-12], b"PAR1" + whole[9:], whole[4:]):
        (tmp_path / "times.parquet").write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be read"):
            load_tables(tmp_path / "tables.json")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr("layoutcheck.cost.tables.MAX_ROWS", 3)
    (tmp_path / "tables.json").write_text(json.dumps(mapping(file=f"times.{form}")))
    if form == "csv":
        (tmp_path / "times.csv").write_text(CSV)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table(_columns(CSV)), tmp_path / "times.parquet")
    with pytest.raises(InputError, match="has more than 3 rows"):
        load_tables(tmp_path / "tables.json")
