"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_graphs() -> Path:
    """The folder of the reference graphs, beside the checkout. They are not part of the project."""
    folder = ROOT.parent / "shared" / "graphs"
    if not folder.is_dir():
        pytest.skip(f"the reference graphs are not there: {folder}")
    return folder
