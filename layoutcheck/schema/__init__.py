"""JSON schema of `layoutcheck-graph/1`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def graph_schema() -> dict[str, Any]:
    """The schema (JSON Schema draft 2020-12) of the graph files that layoutcheck reads and writes."""
    text = files(__name__).joinpath("graph-1.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
