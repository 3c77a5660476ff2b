"""Where a finding is on disk, as the URI that a code host can resolve."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath
from urllib.parse import quote

from layoutcheck.findings import Finding, Report


def relative_path(file: str, base: Path | None = None) -> str | None:
    """Return ``file`` relative to ``base`` (default: the working directory) with forward slashes, or None
    if it lies elsewhere. A path that is relative already is taken to start at ``base``."""
    if "\\" in file or PureWindowsPath(file).drive:
        file = PureWindowsPath(file).as_posix()
    root = (base or Path.cwd()).resolve()
    absolute = Path(file) if Path(file).is_absolute() else root / file
    try:
        return Path(*_folded(absolute)).relative_to(root).as_posix()
    except ValueError:
        return None


def _folded(path: Path) -> list[str]:
    """Return the parts of a path with ``..`` applied as text: the file need not exist here."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return parts


def uri(file: str, base: Path | None = None) -> str:
    """Return the URI of a file: relative where it is below ``base``, else with the scheme ``file``."""
    relative = relative_path(file, base)
    if relative is not None:
        return quote(relative, errors="backslashreplace")
    posix = PureWindowsPath(file).as_posix() if "\\" in file else file
    return "file://" + quote(posix if posix.startswith("/") else f"/{posix}", errors="backslashreplace")


def anchor(finding: Finding, report: Report) -> tuple[str, int]:
    """Return the file and line to show a finding at: the source line if the export recorded one that lies
    below the working directory, else the first line of the graph file."""
    place = finding.location
    if place is not None and (relative_path(place.file) is not None or not report.graph_path):
        return place.file, max(place.line or 1, 1)
    return report.graph_path or "graph", 1
