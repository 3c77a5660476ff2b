"""The rule book: looking ops up, user rules, and the shipped rules against torch and the reference graphs."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutcheck.errors import InputError
from layoutcheck.rules.decorator import rule
from layoutcheck.rules.notation import KEYWORDS, Axis, Pattern, Rule, Unit, Variadic, format_rules, parse
from layoutcheck.rules.rulebook import RuleBook, canonical_target, suggestion, user_rules

BOOK = RuleBook.load()


@pytest.fixture(autouse=True)
def no_user_rules() -> Iterator[None]:
    user_rules.clear()
    yield
    user_rules.clear()


def write(folder: Path, text: str, name: str = "a.rules") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("target", "found", "mutates"),
    [
        ("aten.mm.default", "aten.mm", ()),
        ("aten.mm", "aten.mm", ()),
        ("aten.mm.dtype", "aten.mm.dtype", ()),
        ("torch.ops.aten.add.Tensor", "aten.add.Tensor", ()),
        ("aten::add.Tensor", "aten.add.Tensor", ()),
        ("aten.add_.Tensor", "aten.add_.Tensor", ("self",)),
        ("aten.copy_.default", "aten.copy_.default", ("self",)),
        ("_c10d_functional.all_reduce_.default", "_c10d_functional.all_reduce_.default", ("input",)),
        ("aten.mm.out", "aten.mm.out", ("out",)),
        ("aten.add.out", "aten.add.out", ("out",)),
        ("aten.pow.Tensor_Scalar_out", "aten.pow.Tensor_Scalar_out", ("out",)),
        ("aten.__iand__.Tensor", "aten.__iand__.Tensor", ("self",)),
        ("_operator.floordiv", "operator.floordiv", ()),
        ("<built-in function mul>", "operator.mul", ()),
        ("<function sym_min at 0x7f17396709a0>", "torch.sym_min", ()),
    ],
)
def test_lookup_knows_overloads_in_place_and_out_forms(
    target: str, found: str, mutates: tuple[str, ...]
) -> None:
    rule = BOOK.lookup(target)
    assert rule is not None
    assert (rule.target, rule.mutates) == (found, mutates)


def test_an_in_place_op_keeps_the_dtype_of_what_it_writes() -> None:
    rule = BOOK.lookup("aten.lt_.Tensor")
    assert rule is not None
    assert rule.outdtypes == ("self",)


@pytest.mark.parametrize(
    "target", ["aten.nothing.default", "nothing", "demo.rms_norm.default", "aten.add.int"]
)
def test_lookup_of_an_unknown_op_gives_none(target: str) -> None:
    assert BOOK.lookup(target) is None


def test_an_out_form_takes_the_out_argument() -> None:
    rule = BOOK.lookup("aten.mm.out")
    assert rule is not None
    assert rule.bind(("a", "b"), {"out": "c"}) == {"self": "a", "mat2": "b", "out": "c"}


def test_a_later_folder_overrides_an_earlier_one(tmp_path: Path) -> None:
    first = write(tmp_path / "1", "my.op(x)\n    elementwise\n\naten.mm(self, mat2)\n    elementwise\n")
    second = write(tmp_path / "2", "my.op(x)\n    x: t.. -> t..\n")
    book = RuleBook.load([first, second])
    mine, mm, bmm = (book.lookup(name) for name in ("my.op", "aten.mm.default", "aten.bmm.default"))
    assert mine is not None and mine.kind == "factors"
    assert mm is not None and mm.kind == "elementwise"
    assert bmm == BOOK.lookup("aten.bmm.default")


def test_one_folder_says_each_thing_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", "my.op(x)\n    elementwise\n")
    write(folder, "\nmy.op(x)\n    elementwise\n", "b.rules")
    with pytest.raises(InputError, match=r"b\.rules:2: my\.op has a rule already, at .*a\.rules:1"):
        RuleBook.load([folder])


def test_a_mistake_names_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", "my.op(x)\n    elemwise\n")
    with pytest.raises(InputError, match=r"a\.rules:2:5: unknown keyword"):
        RuleBook.load([folder])


def test_a_missing_folder_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such rule folder"):
        RuleBook.load([tmp_path / "nothing"])
    (tmp_path / "x.rules").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        RuleBook.load([tmp_path])


def test_a_decorated_function_gives_a_rule_and_stays_itself() -> None:
    assert BOOK.lookup("mylib.op.default") is None

    @rule("mylib.op(x, w)", "x: t.. k, w: k n -> t.. n", linear=("x",), weight=("w",), doc="a\nlinear")
    def op(x: int, w: int) -> int:
        return x + w

    found = BOOK.lookup("mylib.op.default")
    assert op(1, 2) == 3
    assert found is not None
    assert (found.linear, found.weights, found.doc) == ({"x"}, {"w"}, "a linear")
    assert "test_rulebook.py" in found.source


def test_a_plain_call_registers_and_overrides_a_shipped_rule() -> None:
    rule("aten.mm(self, mat2)", "elementwise", outdtype="bool", additive=("self", "mat2"))
    found = BOOK.lookup("aten.mm.default")
    assert found is not None
    assert (found.kind, found.outdtype, found.additive) == ("elementwise", "bool", {"self", "mat2"})


def test_a_mistake_in_a_decorator_is_told() -> None:
    with pytest.raises(InputError, match=r"which is no parameter of mylib\.op"):
        rule("mylib.op(x)", "elementwise", linear=("y",))
    assert BOOK.lookup("mylib.op") is None


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(4, 8), (4, 8)], "elementwise"),
        ([(4, 8), (8, 16)], "x: t.. k, w: k n -> t.. n"),
        ([(4, 2, 8), (8,)], "x: t.. x_0! x_1!, w: w_0! -> t.. x_0 x_1"),
        ([None, None], "x: t.., w: w_0! -> t.."),
    ],
)
def test_a_suggestion_is_a_stanza(shapes: list[tuple[int, ...] | None], expected: str) -> None:
    text = suggestion("torch.ops.demo.op.default", 2, shapes)
    (found,) = parse(text)
    assert found.target == "demo.op"
    assert expected in text


@pytest.mark.parametrize("count", range(6))
def test_any_suggestion_parses(count: int) -> None:
    for shapes in itertools.product([None, (), (3,), (3, 4)], repeat=min(count, 3)):
        (found,) = parse(suggestion("nameless", count, shapes))
        assert found.target == "custom.nameless"
        assert len(found.params) == count


def test_canonical_target_leaves_other_names_alone() -> None:
    assert canonical_target("tensor_cast.all_reduce.default") == "tensor_cast.all_reduce.default"


def test_loading_all_rules_is_quick() -> None:
    from layoutcheck.rules.rulebook import _builtin_rules

    best = 1.0
    for _ in range(5):
        _builtin_rules.cache_clear()
        start = time.process_time()
        RuleBook.load()
        best = min(best, time.process_time() - start)
    assert best < 0.06


def test_shipped_rules_round_trip() -> None:
    text = format_rules(BOOK.rules.values())
    assert parse(text) == tuple(BOOK.rules.values())


# Structure that every shipped rule has.

# The transforms and the parameters that each must find, by its own name or renamed by an option.
TRANSFORMS = {
    "tensor_split": "self sections dim",
    "floor_divide": "self other",
    "view": "self size",
    "flatten": "self start_dim end_dim",
    "unflatten": "self dim sizes",
    "permute": "self dims",
    "movedim": "self source destination",
    "transpose": "self dim0 dim1",
    "t": "self",
    "unsqueeze": "self dim",
    "squeeze": "self",
    "expand": "self size",
    "repeat": "self repeats",
    "repeat_interleave": "self repeats dim",
    "slice": "self dim start end step",
    "narrow": "self dim start length",
    "select": "self dim index",
    "split": "self split_size dim",
    "chunk": "self chunks dim",
    "unbind": "self dim",
    "cat": "tensors dim",
    "stack": "tensors dim",
    "pad": "self pad",
    "roll": "self shifts dims",
    "flip": "self dims",
    "diff": "self n dim prepend append",
    "reduce": "self kind",
    "scan": "self dim",
    "sort": "self dim",
    "argmax": "self dim keepdim",
    "topk": "self k dim",
    "glu": "self dim",
    "histogram": "self bins",
    "index": "self indices",
    "index_select": "self dim index",
    "gather": "self dim index",
    "scatter": "self dim index src",
    "index_put": "self indices values",
    "index_add": "self dim index source",
    "embedding": "weight indices",
    "where": "condition self other",
    "masked_fill": "self mask value",
    "copy": "self src",
    "slice_scatter": "self src dim start end step",
    "select_scatter": "self src dim index",
    "create": "",
    "arange": "",
    "scalar": "value",
    "einsum": "equation operands",
    "matmul": "self other",
    "grouped_mm": "self mat2",
    "group_norm": "input num_groups weight bias",
    "loss": "self target reduction",
    "conv": "input weight bias stride padding dilation groups",
    "all_gather": "x",
    "reduce_scatter": "x",
    "all_reduce": "x",
    "all_to_all": "x",
    "broadcast": "x",
    "shard": "x dim group",
    "wait": "x",
    "region_begin": "x id",
    "region_end": "x id",
    "region_copy": "x id",
    "dispatch": "x ids",
    "combine": "y ids",
    "moe": "x ids",
    "cache_write": "values cache slots",
    "quantize": "x",
    "sym": "op",
    "assert_": "",
    "view_as_complex": "self",
    "view_as_real": "self",
    "tri": "self diagonal",
    "same": "self",
    "opaque": "",
    "pieces": "x flat out group",
}
OPTIONAL = {
    "reduce": "dim keepdim indices outputs",
    "scan": "indices",
    "sort": "only",
    "create": "size like value",
    "arange": "start end step length",
    "grouped_mm": "offs packed halves",
    "all_gather": "dim group size ranks rank out pieces if unpad",
    "reduce_scatter": "dim group size ranks rank op out pieces pad",
    "all_reduce": "group size ranks rank op out unless",
    "all_to_all": "group size ranks rank out pieces gather_dim shard_dim",
    "broadcast": "group size ranks rank out",
    "shard": "like size ranks rank",
    "moe": "up down ranks rank",
    "cache_write": "returns",
    "quantize": "dims group_size offset",
    "sym": "a",
    "opaque": "outputs as",
    "pieces": "op",
    "transpose": "if",
}
COLLECTIVES = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}


def transforms() -> list[tuple[Rule, str, dict[str, str], bool]]:
    """All uses of a transform: rule, name, options, and whether it follows the rule's own result."""
    uses = [(r, r.code, dict(r.options), False) for r in BOOK.rules.values() if r.code]
    uses += [(r, name, dict(options), True) for r in BOOK.rules.values() for name, options in r.then]
    return uses


def test_every_transform_gets_its_parameters() -> None:
    wrong = []
    for found, name, options, follows in transforms():
        wanted = TRANSFORMS[name].split()[1 if follows and name != "cache_write" else 0 :]
        known = {*found.param_names, *options}
        missing = [key for key in wanted if key not in known]
        extra = [
            key for key in options if key not in (*TRANSFORMS[name].split(), *OPTIONAL.get(name, "").split())
        ]
        if missing or extra:
            wrong.append((found.target, name, missing, extra))
    assert not wrong


def test_every_collective_knows_its_group() -> None:
    for found, name, options, _ in transforms():
        if name in COLLECTIVES:
            assert {"group", "ranks"} & {*options, *found.param_names}, found.target


def test_an_addend_is_additive_to_something_linear() -> None:
    for found in BOOK.rules.values():
        if found.addends:
            assert found.linear, found.target


def test_scales_belong_to_tensors_and_documented_rules_say_something() -> None:
    for found in BOOK.rules.values():
        assert not (set(found.scales) & set(found.scales.values())), found.target
        assert found.source.split(":")[0].endswith(".rules"), found.target


def test_dtype_words_fit_the_outputs() -> None:
    for found in BOOK.rules.values():
        if found.kind == "factors":
            more = sum(2 if "offset" in options else 1 for name, options in found.then if name == "quantize")
            assert len(found.outdtypes) <= len(found.outputs) + more, found.target


# The shipped rules against torch.


def torch_op(target: str) -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed._functional_collectives")
    namespace, op, *overload = target.split(".")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    return getattr(packet, overload[0] if overload else "default", None)


TORCH = [
    found
    for found in BOOK.rules.values()
    if found.target.split(".")[0]
    in ("aten", "_c10d_functional", "c10d", "c10d_functional", "_dtensor", "prims")
]


@pytest.mark.parametrize("found", TORCH, ids=lambda found: str(found.target))
def test_headers_are_torch_schemas(found: Rule) -> None:
    op = torch_op(found.target)
    if op is None:
        pytest.skip("this torch has no such op")
    arguments = op._schema.arguments
    assert [argument.name for argument in arguments] == list(found.param_names)
    for argument, param in zip(arguments, found.params):
        assert param.required == (not argument.has_default_value()), param.name
        if not param.required:
            assert param.default == argument.default_value, param.name


SIZES = {"t": 6, "k": 4, "n": 5, "h": 3, "d": 2, "r": 2, "q": 7, "e": 8, "b": 2, "a": 9, "p": 3, "c": 11}
NUMBERS = {"p": 0.25, "train": False, "alpha": 2, "value": 3.0, "beta": 1, "max": 0.9}


def shape_of(pattern: Pattern, sizes: dict[str, int]) -> list[int]:
    shape: list[int] = []
    for axis in pattern.axes:
        if isinstance(axis, Variadic):
            shape.append(13)
        elif isinstance(axis, Axis):
            size = 1
            for label in axis.labels:
                size *= sizes[label.name]
            shape.append(size)
        elif isinstance(axis, Unit):
            shape.append(1)
    return shape


FACTOR_ARGUMENTS: dict[str, dict[str, Any]] = {
    "aten.native_layer_norm": {"normalized_shape": [3], "eps": 1e-5},
    "aten.layer_norm": {"normalized_shape": [3]},
    "aten.rms_norm": {"normalized_shape": [3]},
    "aten._fused_rms_norm": {"normalized_shape": [3], "eps": 1e-5},
    "aten.scaled_dot_product_attention": {"enable_gqa": True},
    "aten._scaled_dot_product_attention_math": {"enable_gqa": True},
    "aten.native_dropout": {"p": 0.5, "train": True},
    "aten.multinomial": {"num_samples": 2},
    "aten.one_hot": {"num_classes": 9},
    "aten.eye": {"n": 4},
    "aten.eye.m": {"n": 4, "m": 3},
    "aten.randperm": {"n": 4},
    "aten.isin.Tensor_Scalar": {"test_element": 1},
}
FACTORS = [found for found in TORCH if found.kind == "factors" and found.target.startswith("aten.")]


@pytest.mark.parametrize("found", FACTORS, ids=lambda found: str(found.target))
def test_factor_rules_give_the_shapes_that_torch_gives(found: Rule) -> None:
    torch = pytest.importorskip("torch")
    op = torch_op(found.target)
    if op is None:
        pytest.skip("this torch has no such op")
    values: dict[str, Any] = dict(FACTOR_ARGUMENTS.get(found.target, {}))
    # Only some kernels take fewer key heads than query heads.
    sizes = SIZES if "enable_gqa" in found.param_names else {**SIZES, "r": 1, "e": SIZES["d"]}
    for operand in found.operands:
        values[operand.param] = torch.rand(shape_of(operand.pattern, sizes))
    if found.target == "aten.one_hot":
        values["self"] = values["self"].long()
    if found.target == "aten.masked_scatter":
        values["mask"] = values["mask"] > 0.5
    if "out_dtype" in found.param_names or "compute_log_sumexp" in found.param_names:
        pytest.skip("only on a GPU")
    names = {argument.name for argument in op._schema.arguments if argument.kwarg_only}
    required = [p.name for p in found.params if p.required]
    assert set(required) <= set(values), "the test must give these"
    positional = [values.get(p.name, p.default) for p in found.params if p.name not in names]
    try:
        result = op(*positional, **{k: v for k, v in values.items() if k in names})
    except NotImplementedError:
        pytest.skip("only on a GPU")
    results = result if isinstance(result, (tuple, list)) else [result]
    assert len(results) == len(found.outputs)
    for got, output in zip(results, found.outputs):
        if output.kind == "tensor":
            assert output.pattern is not None
            new = {label: int(values[param]) for label, param in output.new.items()}
            assert list(got.shape) == shape_of(output.pattern, {**sizes, **new})
        elif output.kind == "same":
            assert got.shape == values[str(output.same_as)].shape


POINTWISE = [
    found
    for found in TORCH
    if found.kind == "elementwise" and found.target.startswith("aten.") and not found.mutates
]
NOT_TESTED = {
    "aten.bernoulli": "draws numbers",
    "aten.bernoulli.p": "draws numbers",
    "aten.nan_to_num": "linear as long as all numbers are finite",
}


def pointwise(found: Rule) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The op, random tensors for its tensor parameters and numbers for the others."""
    torch = pytest.importorskip("torch")
    op = torch_op(found.target)
    if op is None:
        pytest.skip("this torch has no such op")
    tensors, numbers = {}, {}
    generator = torch.Generator().manual_seed(0)
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            tensors[argument.name] = torch.rand(17, dtype=torch.float64, generator=generator) * 8 + 0.5
        elif argument.has_default_value():
            continue
        elif kind == "str" or argument.name == "rounding_mode":
            numbers[argument.name] = "floor"
        else:
            numbers[argument.name] = NUMBERS.get(argument.name, 3)
    return op, tensors, numbers


def apply(op: Any, tensors: dict[str, Any], numbers: dict[str, Any]) -> Any:
    """The op's value on these numbers, as complex numbers or as integers where it takes no others."""
    torch = pytest.importorskip("torch")
    for dtype in (torch.float64, torch.complex128):
        try:
            return op(**{name: value.to(dtype) for name, value in tensors.items()}, **numbers)
        except (NotImplementedError, RuntimeError):
            continue
    return op(**{name: (value * 10).long() for name, value in tensors.items()}, **numbers)


@pytest.mark.parametrize("found", POINTWISE, ids=lambda found: str(found.target))
def test_linear_and_additive_are_what_torch_computes(found: Rule) -> None:
    """f(x1 + x2) = f(x1) + f(x2) where tagged, and not where it isn't, in exact enough arithmetic."""
    torch = pytest.importorskip("torch")
    if found.target in NOT_TESTED:
        pytest.skip(NOT_TESTED[found.target])
    op, first, numbers = pointwise(found)
    for name in first:
        split = dict(first)
        other = dict(first)
        generator = torch.Generator().manual_seed(1)
        share = torch.rand(first[name].shape, dtype=torch.float64, generator=generator) * 4 - 2
        split[name], other[name] = share, first[name] - share
        try:
            whole = apply(op, first, numbers)
            pieces = [apply(op, split, numbers), apply(op, other, numbers)]
        except RuntimeError:
            assert name not in found.linear
            continue
        if whole.dtype == torch.bool or not (whole.dtype.is_floating_point or whole.dtype.is_complex):
            assert name not in found.linear
            continue
        holds = torch.allclose(pieces[0] + pieces[1], whole, equal_nan=False)
        if name in found.linear:
            assert holds, name
        elif name not in found.additive:
            assert not holds, f"{found.target} is linear in {name}, and its rule does not say so"


@pytest.mark.parametrize(
    "found", [found for found in POINTWISE if found.additive], ids=lambda found: str(found.target)
)
def test_additive_operands_are_additive_together(found: Rule) -> None:
    torch = pytest.importorskip("torch")
    op, first, numbers = pointwise(found)
    split, other = dict(first), dict(first)
    for name in found.additive:
        split[name] = torch.rand(17, dtype=torch.float64) * 4 - 2
        other[name] = first[name] - split[name]
    whole = op(**{**first, **numbers})
    pieces = op(**{**split, **numbers}) + op(**{**other, **numbers})
    assert torch.allclose(whole, pieces)


# The shipped rules against the reference graphs.


def graph_calls(folder: Path) -> Iterator[tuple[str, str, list[Any] | None, dict[str, Any]]]:
    """Graph, target and arguments (None where the wrapper hides them) of every call in the graphs."""
    for path in sorted(folder.glob("*.json.gz")):
        for node in json.loads(gzip.decompress(path.read_bytes()))["nodes"]:
            if node["op"] != "call_function" or "getitem" in node["target"]:
                continue
            target, args = node["target"], node.get("args", [])
            if target.startswith("auto_functionalized"):
                match = re.search(r"op='([\w.]+)', overload='(\w+)'", args[0]["repr"])
                assert match is not None
                yield path.name, ".".join(match.groups()), None, {}
            else:
                yield path.name, target, args, node.get("kwargs", {})
    for path in sorted(folder.glob("*.pt2")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("model.json"):
                    nodes = json.loads(archive.read(name))["graph_module"]["graph"]["nodes"]
                    for node in nodes:
                        yield path.name, node["target"], [], {x["name"]: x["arg"] for x in node["inputs"]}


@pytest.mark.shared
def test_every_op_of_the_reference_graphs_has_a_rule_that_binds(shared_graphs: Path) -> None:
    unknown, unfit, seen = set(), set(), 0
    for graph, target, args, kwargs in graph_calls(shared_graphs):
        if graph == "custom_ns.pt2":
            continue
        seen += 1
        found = BOOK.lookup(target)
        if found is None:
            unknown.add(target)
        elif args is not None:
            try:
                found.bind(args, kwargs)
            except InputError as error:
                unfit.add((graph, str(error)))
    assert seen > 10_000
    assert (unknown, unfit) == (set(), set())


@pytest.mark.shared
def test_every_counted_op_has_a_rule(shared_graphs: Path) -> None:
    with (shared_graphs / "aten_op_counts.csv").open() as lines:
        ops = [row["op"] for row in csv.DictReader(lines)]
    assert len(ops) > 100
    assert [op for op in ops if BOOK.lookup(op) is None] == []


@pytest.mark.shared
def test_signatures_of_the_serving_ops(shared_graphs: Path) -> None:
    """Each listed op has a rule with its parameters, mutated arguments and number of outputs."""
    pattern = re.compile(r"\S+\s+(\w+) \((.*)\) -> (.*?)\s*(?:MUTATES \((.*)\))?\s*$")
    rows = [pattern.match(line) for line in (shared_graphs / "tensor_cast_ops.txt").read_text().splitlines()]
    checked = 0
    for row in rows:
        if row is None:
            continue
        name, arguments, returns, mutates = row.groups()
        found = BOOK.lookup(f"tensor_cast.{name}.default")
        assert found is not None, name
        assert list(found.param_names) == re.findall(r"(?:^|, )\*?(\w+):", arguments), name
        assert found.mutates == tuple(re.findall(r"'(\w+)'", mutates or "")), name
        if found.kind == "factors":
            more = sum(2 if "offset" in options else 1 for code, options in found.then if code == "quantize")
            assert len(found.outputs) + more == returns.count("torch.Tensor"), name
        checked += 1
    assert checked == 110


# The page for users.


def test_the_page_names_every_keyword_and_transform_and_its_examples_parse(repo_root: Path) -> None:
    page = (repo_root / "docs" / "rules.md").read_text()
    blocks = re.findall(r"```rules\n(.*?)```", page, re.S)
    assert sum(len(parse(block, "docs/rules.md")) for block in blocks) >= 6
    missing = [word for word in (*KEYWORDS, *TRANSFORMS) if not re.search(rf"`{word}[` ]", page)]
    assert missing == []
    options = {word for words in OPTIONAL.values() for word in words.split()}
    assert [word for word in sorted(options) if word not in page] == []
