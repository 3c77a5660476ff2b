"""The pages that explain the finding codes: one Markdown file a code, in ``codes/``."""

from __future__ import annotations

import difflib
from importlib.resources import files

from layoutcheck.codes import CODES
from layoutcheck.errors import InputError

SECTIONS = ("The rule", "Wrong", "Right", "How to fix")


def code_of(text: str) -> str:
    """Return the finding code that ``text`` names, by code (``lc203``) or by name (``mixed-tokens``).

    Raises:
        InputError: no code is named so; the message lists those that look alike.
    """
    wanted = text.strip()
    by_name = {info.name: code for code, info in CODES.items()}
    code = wanted.upper() if wanted.upper() in CODES else by_name.get(wanted.lower())
    if code is not None:
        return code
    # Digits in the wrong order are the likeliest slip, and difflib thinks little of them.
    near = [code for code in CODES if sorted(code) == sorted(wanted.upper())]
    near = near or difflib.get_close_matches(wanted.upper(), CODES, n=3, cutoff=0.75)
    near += difflib.get_close_matches(wanted.lower(), by_name, n=2, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; the codes are " + ", ".join(CODES)
    raise InputError(f"unknown finding code {wanted!r}{hint}")


def explain(code: str) -> str:
    """Return the page about a finding code (or its name) as Markdown.

    Raises:
        InputError: there is no such code.
    """
    known = code_of(code)
    return (files("layoutcheck.explain") / "codes" / f"{known}.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """Return the text under a page's heading ``## title``, or an empty string."""
    lines = page.splitlines()
    heading = f"## {title}"
    if heading not in lines:
        return ""
    rest = lines[lines.index(heading) + 1 :]
    end = next((i for i, line in enumerate(rest) if line.startswith("## ")), len(rest))
    return "\n".join(rest[:end]).strip()
