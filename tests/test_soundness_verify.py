"""verify and replay, counter-examples, and what a layout denotes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import attrs
import pytest

torch = pytest.importorskip("torch")

from support.faults import FAULTS, Fault, Size  # noqa: E402
from support.programs import build  # noqa: E402

import layoutcheck  # noqa: E402
from layoutcheck.cli import main  # noqa: E402
from layoutcheck.domains import factor, feature, padded, token  # noqa: E402
from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.layouts import Layout, layout  # noqa: E402
from layoutcheck.ranks.counterexample import CounterExample, find  # noqa: E402
from layoutcheck.ranks.denote import Ranks, Undenoted, join, relaid, share, valid  # noqa: E402
from layoutcheck.ranks.interpreter import RankError, named_groups, run, run_call  # noqa: E402
from layoutcheck.testing import Decoder, Layers  # noqa: E402

torch.set_num_threads(1)
PAIR = Ranks((2,))


def fault(key: str) -> Fault:
    return next(f for f in FAULTS if f.key == key)


def write(graph: Any, folder: Path) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(graph))
    return str(path)


# ---- layouts


def local(tokens: int, p: int, width: int = 3) -> Layout:
    c = -(-tokens // p)
    domain = padded(token("T", tokens), c * p)
    return layout("float32", ((factor(domain, 1, c),), (feature(width).whole,)), {0: (factor(domain, c, p),)})


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_join_undoes_share(tokens: int) -> None:
    of = local(tokens, 2)
    rows = -(-tokens // 2) * 2
    whole = torch.arange(rows * 3.0).view(rows, 3)
    parts = share(whole, of, PAIR)
    assert torch.equal(parts[1], whole[rows // 2 :])
    assert torch.equal(join(parts, of, PAIR), whole)
    mask = valid(of, PAIR)
    assert (0 if mask is None else int((~mask).sum())) == (rows - tokens) * 3


def test_full_means_equal() -> None:
    of = layout("float32", ((feature(3).whole,),))
    x = torch.arange(3.0)
    assert torch.equal(join([x, x.clone()], of, PAIR), x)
    with pytest.raises(Undenoted, match="another value"):
        join([x, x + 1], of, PAIR)


def test_partial_means_sum() -> None:
    of = layout("float32", ((feature(3).whole,),), {}, (0,))
    x = torch.arange(3.0)
    assert torch.equal(join([x, 2 * x], of, PAIR), 3 * x)


def test_mixed_denotes_nothing() -> None:
    t, f = token("T", 4), feature(6)
    of = layout("float32", ((factor(t, 1, 2),), (factor(f, 1, 3),)), {0: (factor(t, 2, 2), factor(f, 3, 2))})
    with pytest.raises(Undenoted, match="same group"):
        join([torch.ones(2, 3)] * 2, of, PAIR)


def test_padding_need_not_agree() -> None:
    domain = padded(token("T", 3), 4)
    of = layout("float32", ((domain.whole,),))
    a, b = torch.tensor([1.0, 2, 3, 0]), torch.tensor([1.0, 2, 3, 9])
    assert torch.equal(join([a, b], of, PAIR)[:3], a[:3])
    with pytest.raises(Undenoted):
        join([a, torch.tensor([1.0, 2, 4, 0])], of, PAIR)


def test_relaid_swaps_digits() -> None:
    t, s = token("T", 6), token("S", 2)
    one = layout("float32", ((t.whole,), (s.whole,)))
    other = layout("float32", ((s.whole,), (t.whole,)))
    x = torch.arange(12.0).view(6, 2)
    moved = relaid(x, one, other, PAIR)
    assert moved is not None and torch.equal(moved, x.T)


def test_two_mesh_axes() -> None:
    t = token("T", 12)
    of = layout("float32", ((factor(t, 1, 2),),), {1: (factor(t, 6, 2),), 0: (factor(t, 2, 3),)})
    ranks = Ranks((3, 2))
    whole = torch.arange(12.0)
    parts = share(whole, of, ranks)
    assert [p.tolist() for p in parts[:2]] == [[0.0, 1.0], [2.0, 3.0]]
    assert parts[3].tolist() == [6.0, 7.0]
    assert torch.equal(join(parts, of, ranks), whole)


# ---- running


def test_ranks_that_wait_for_each_other_are_reported() -> None:
    size = Size("pair", T=8, p=2)
    graphs = [
        graph_from_json(build("tensor_parallel", "tensor_cast", replace(size, rank=r))) for r in range(2)
    ]
    short = graph_from_json(build("tensor_parallel", "tensor_cast", replace(size, rank=1)))
    cut = next(i for i, n in enumerate(short.nodes) if "all_reduce" in n.target)
    short.nodes = short.nodes[:cut]
    given: dict[str, Any] = {}
    for n in graphs[0].nodes:
        if n.op == "placeholder":
            shape = [int(s) for s in n.meta.shape]
            given[n.name] = (
                torch.zeros(shape, dtype=torch.int64)
                if n.meta.dtype == "int64"
                else torch.ones(shape).double()
            )
    with pytest.raises(RankError, match="wait for exchanges"):
        run([graphs[0], short], [given, given], named_groups(graphs))


def test_uneven_scatter_does_not_run() -> None:
    args = [dict(x=torch.ones(3, 2), dim=0, rank=r, rank_group=[0, 1]) for r in range(2)]
    with pytest.raises(RankError, match="do not divide"):
        run_call("tensor_cast.reduce_scatter.default", args, lambda r, g: list(g))


# ---- counter-examples


def test_symbolic_tokens_take_several_counts() -> None:
    analysis = analyse(graph_from_json(build("sequence_parallel", "c10d", Size(symbol="T"))))
    assert find(analysis, tokens=[8, 16]) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"format": "layoutcheck-counterexample/1"},
        {"format": "layoutcheck-counterexample/1", "world": True},
        {
            "format": "layoutcheck-counterexample/1",
            "world": 4,
            "tokens": 4,
            "seed": 0,
            "node": "x",
            "detail": "",
            "after": [1],
        },
    ],
)
def test_damaged_counter_example(data: Any) -> None:
    with pytest.raises(InputError):
        CounterExample.from_dict(data)


# ---- the commands


def test_verify_says_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(build("sequence_parallel", "tensor_cast", Size("uneven", T=13)), tmp_path)
    assert main(["verify", path, "--ranks", "4"]) == 0
    assert capsys.readouterr().out.startswith("equal on 4 ranks (")


def test_verify_writes_repeats_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A body of five repeats runs as one of two: as many values are compared as of the graph in which two are written."""
    path, shown = str(tmp_path / "graph.json"), []
    for repeats, form in ((5, "repeated"), (2, "repeated"), (2, "expanded"), (3, "expanded")):
        stack = (Layers(repeats=1), Layers(repeats=repeats, inner=4))
        layoutcheck.save(Decoder(stack=stack, width=16, ranks=2, style="sp").build(form), path)
        assert main(["verify", path]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith("equal on 2 ranks (")
    assert shown[0] == shown[1] == shown[2] != shown[3]


def test_verify_shows_the_first_tensor_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, _, node = fault("1").faulty("tensor_cast")
    path, saved = write(graph, tmp_path), str(tmp_path / "finding.json")
    assert main(["verify", path, "--save", saved]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"differs on 4 ranks, first at {node}: rank ")
    assert main(["replay", saved]) == 1
    assert capsys.readouterr().out.startswith(f"differs: p=4, T=5, seed 0: {node}")
    Path(path).write_text(json.dumps(fault("1").repaired("tensor_cast")))
    assert main(["replay", saved]) == 0


def test_verify_refuses_what_it_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(build("tensor_parallel", "tensor_cast", Size()), tmp_path)
    assert main(["verify", path, "--ranks", "8"]) == 2
    assert "tp is said to be of 8 ranks, in the graph it has 4" in capsys.readouterr().err
    graph = build("tensor_parallel", "tensor_cast", Size())
    for n in graph["nodes"]:
        n["target"] = n["target"].replace("tensor_cast.silu", "my.silu")
    assert main(["verify", write(graph, tmp_path)]) == 2
    assert "no reference implementation of my.silu" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{]")
    assert main(["replay", str(tmp_path / "bad.json")]) == 2


def test_tokens_outside_of_the_exports_range_are_refused(
    repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(repo_root / "examples" / "exports" / "shared_expert_right.pt2")
    assert main(["verify", path, "--extent", "1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: --extent: the export says that T is at least 5, not 1\n")
    assert main(["verify", path, "--extent", "5"]) == 0


def test_what_one_device_cannot_run_is_no_difference(
    repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a range in the graph: four keys cannot be picked of one token, on ranks or not."""
    graph = layoutcheck.load(repo_root / "examples" / "exports" / "shared_expert_right.pt2")
    path = tmp_path / "open.json"
    layoutcheck.save(attrs.evolve(graph, ranges={}), path)
    assert main(["verify", str(path), "--extent", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(
        "error: --extent: 1 tokens do not run on one device either, first at topk: rank 0: "
    )
    assert main(["verify", str(path), "--extent", "5"]) == 0


COPIES = {
    "clone": lambda x: torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format),
    "contiguous": lambda x: x.contiguous(),
    "converted": lambda x: torch.ops.aten._to_copy.default(
        x, dtype=torch.float64, memory_format=torch.contiguous_format
    ),
    "made alike": lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format) + 1,
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("form", ["archive", "in process"])
def test_a_copy_has_the_strides_that_it_is_asked_for(
    copy: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads brought behind the tokens, copied in order, and joined by a view, which strides in another order forbid."""

    class Joined(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.view.default(COPIES[copy](x.transpose(1, 2)), [x.shape[0], x.shape[2], -1])

    program = torch.export.export(Joined(), (torch.rand(2, 3, 5, 4),), strict=False)
    path = tmp_path / ("joined.pt2" if form == "archive" else "joined.json")
    if form == "archive":
        torch.export.save(program, path)
    else:
        layoutcheck.save(layoutcheck.from_fx(program), path)
    assert main(["verify", str(path), "--ranks", "1"]) == 0, capsys.readouterr()
