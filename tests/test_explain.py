"""The pages about the codes: complete, in step with the table, and found by a slip of the finger."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files

import pytest

import layoutcheck
from layoutcheck.codes import CODES, Severity
from layoutcheck.errors import InputError
from layoutcheck.explain.pages import SECTIONS, code_of, explain, section


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_whole_page(code: str) -> None:
    page = explain(code)
    assert page.startswith(f"# {code} {CODES[code].name}\n")
    assert CODES[code].severity.value in page.splitlines()[2]
    for title in SECTIONS:
        assert len(section(page, title)) > 20, title
    for title in ("Wrong", "Right"):
        assert section(page, title).startswith("```\n") and section(page, title).endswith("\n```")
    assert section(page, "Wrong") != section(page, "Right")


def test_there_is_no_page_without_a_code() -> None:
    pages = {path.name.removesuffix(".md") for path in (files("layoutcheck.explain") / "codes").iterdir()}
    assert pages == set(CODES)


def test_names_and_lower_case_are_understood() -> None:
    assert code_of("lc203") == code_of("mixed-tokens") == code_of(" LC203 ") == "LC203"


@pytest.mark.parametrize(
    ("text", "near"), [("LC230", "LC203"), ("LC2O3", "LC203"), ("mixd-tokens", "mixed-tokens")]
)
def test_unknown_codes_are_answered_with_a_guess(text: str, near: str) -> None:
    with pytest.raises(InputError, match=near):
        explain(text)


def test_a_text_that_resembles_nothing_lists_the_codes() -> None:
    with pytest.raises(InputError, match=r"the codes are LC101, .*LC903"):
        explain("zzz")


def test_a_section_that_is_not_there_is_empty() -> None:
    assert section("# t\n\n## A\n\ntext\n\n## B\n\nmore\n", "A") == "text"
    assert section("# t\n", "A") == ""


def test_table_of_codes() -> None:
    warnings = {code for code, info in CODES.items() if info.severity is Severity.WARNING}
    assert warnings == {"LC601", "LC602", "LC902"}
    assert len({info.name for info in CODES.values()}) == len(CODES)
    assert list(CODES) == sorted(CODES)


def test_the_function_wins_over_the_module_of_its_name() -> None:
    import_module("layoutcheck.explain.pages")
    assert layoutcheck.explain("LC101") == explain("LC101")
