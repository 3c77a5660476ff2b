"""What an output holds can be declared, as that of an input."""

from __future__ import annotations

import pytest
from support import engine
from support.messages_boundary import padding_leaves_that_is_cut_elsewhere, share_leaves
from support.messages_padding import padding_leaves

from layoutcheck.errors import InputError


def marks(build: object, layouts: dict[str, str]) -> list[tuple[str, str, str]]:
    report = engine.check(build().graph(), layouts=layouts)  # type: ignore[operator]
    return [(engine.code(f), engine.severity(f), f.node) for f in report.findings]


@pytest.mark.parametrize(
    ("build", "output", "layout"),
    [
        (share_leaves, "slice_1", "[T/4@tp, 8]"),
        (padding_leaves, "constant_pad_nd", "[pad(T), 8]"),
        (padding_leaves_that_is_cut_elsewhere, "all_gather_1", "[pad(T), 8]"),
    ],
)
def test_a_declared_output_may_leave(build: object, output: str, layout: str) -> None:
    assert marks(build, {}) and not marks(build, {output: layout})


@pytest.mark.parametrize(
    ("build", "output", "layout"),
    [
        (share_leaves, "slice_1", "[T, 8]"),
        (share_leaves, "slice_1", "[pad(T), 8]"),
        (share_leaves, "slice_1", "[4, 8]"),
        (padding_leaves, "constant_pad_nd", "[T, 8]"),
    ],
)
def test_another_layout_than_the_declared_one_is_an_error(build: object, output: str, layout: str) -> None:
    assert marks(build, {output: layout}) == [("LC107", "error", "output")]


@pytest.mark.parametrize(
    ("name", "layout", "message"),
    [
        ("slice_1", "T, 8", "`T, 8` is no layout; write one as [T/4@tp, 64]"),
        ("slice_1", "[T+1, 8]", "`T+1` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("slice_1", "[pad(T)*2, 8]", "`pad(T)` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("slice_1", "[T/4@ep, 8]", "there is no group `ep` (known: tp); name it with --group ep=SIZE"),
        ("slice_1", "[T/2@tp, 8]", "`T/2@tp` divides by 2, but tp has 4 ranks"),
        ("slice_1", "[T, 8] ++tp", "`++tp` is no `+group` and no `{name/ways@group}`"),
        ("slice_9", "[T, 8]", "there is no input or output `slice_9`; did you mean slice_1?"),
    ],
)
def test_a_malformed_declaration_is_refused(name: str, layout: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        engine.check(share_leaves().graph(), layouts={name: layout})
    assert refused.value.message == message
