"""Damaged documents of every kind are read or refused with one line that names the file, never with another exception."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from fuzz_files import READERS, damaged

from layoutcheck.errors import InputError


@pytest.mark.parametrize("kind", READERS)
def test_what_is_right_is_read(kind: str, tmp_path: Path) -> None:
    name, read, files = READERS[kind]
    for data in files:
        (tmp_path / name).write_bytes(data)
        try:
            read(tmp_path / name)
        except InputError as error:
            # a mapping names tables beside it, which are not there
            assert kind == "tables" and "gemm.csv" in str(error)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_damaged_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for kind, name, read, data in itertools.islice(damaged(seed), 400):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        try:
            read(folder / name)
            counts["ok"] += 1
        except InputError as error:
            counts["refused"] += 1
            assert "\n" not in str(error) or kind == "rules", str(error)
    assert counts["ok"] > 20 and counts["refused"] > 100
