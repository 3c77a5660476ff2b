"""A floor imports only from floors below: docs/architecture.md lists them, and every import statement is held against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# What is loaded only to print: a finding's `str` is its text report.
LOADED_TO_PRINT = {("findings", "reports")}


def floors(repo_root: Path) -> list[str]:
    """Parts of the package in the order in which they stand on each other, lowest first."""
    text = (repo_root / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d \| [^|]* \| ([^|]*) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 9
    return [part for row in rows for part in re.findall(r"`([\w/]+)`", row)]


def part_of(module: str, repo_root: Path) -> str:
    """The part that a module belongs to: a package, one of inference's packages, or a file at the top."""
    _, *names = module.split(".")
    if not names:
        return "__init__"
    if names[0] == "infer" and len(names) > 1 and (repo_root / "layoutcheck" / "infer" / names[1]).is_dir():
        return f"infer/{names[1]}"
    return names[0]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import from the package, wherever in the file it stands."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = node.module.count(".") > 0
            yield from (
                (node.lineno, node.module if whole else f"{node.module}.{a.name}") for a in node.names
            )


def test_every_part_has_a_floor(repo_root: Path) -> None:
    found = {
        part_of(".".join(file.relative_to(repo_root).with_suffix("").parts), repo_root)
        for file in (repo_root / "layoutcheck").rglob("*.py")
        if file.parent.name != "infer"
    }
    listed = floors(repo_root)
    assert sorted(listed) == sorted(found)


def test_a_floor_imports_only_from_floors_below(repo_root: Path) -> None:
    order = {part: i for i, part in enumerate(floors(repo_root))}
    upwards, seen = [], 0
    for file in sorted((repo_root / "layoutcheck").rglob("*.py")):
        here = part_of(".".join(file.relative_to(repo_root).with_suffix("").parts), repo_root)
        for line, module in imports(file):
            if not module.startswith("layoutcheck."):
                continue
            there = part_of(module, repo_root)
            seen += 1
            higher = order.get(there, 0) > order.get(here, len(order))
            if higher and (here, there) not in LOADED_TO_PRINT:
                upwards.append(f"{file.relative_to(repo_root)}:{line} imports {module}")
    assert seen > 1000
    assert upwards == []
