"""``explain``: what a finding code means, with a wrong and a right example."""

from __future__ import annotations

from layoutcheck.explain.pages import code_of as code_of
from layoutcheck.explain.pages import explain as explain
