"""Ranks as processes that torch.distributed connects: what they compute is what simulated ranks compute, and none outlives
its run.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from support.faults import FAULTS, Size  # noqa: E402
from support.programs import build  # noqa: E402

from layoutcheck import save  # noqa: E402
from layoutcheck.cli import main  # noqa: E402
from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.graph import Graph  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.ranks import processes  # noqa: E402
from layoutcheck.ranks.interpreter import RankError, named_groups, run  # noqa: E402
from layoutcheck.ranks.processes import run_processes  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """All processes that a test starts; none may be left."""
    made: list[Any] = []
    popen = subprocess.Popen

    def start(*args: Any, **kwargs: Any) -> Any:
        made.append(popen(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(processes.subprocess, "Popen", start)
    yield made
    assert all(p.poll() is not None for p in made)


def call(name: str, target: str, *args: Any, shape: tuple[int, ...] = ()) -> dict[str, Any]:
    meta = {"shape": list(shape), "dtype": "float32"}
    return {"name": name, "op": "call_function", "target": target, "args": list(args), "meta": meta}


def program(rank: int, calls: list[dict[str, Any]], world: int) -> Graph:
    """Calls on an input x, each from x: `x` stands for a reference to it."""
    nodes = [{"name": "x", "op": "placeholder", "target": "x", "args": [], "meta": None}]
    for c in calls:
        nodes.append({**c, "args": [{"node": "x"} if a == "x" else a for a in c["args"]]})
    last = [{"node": c["name"]} for c in calls]
    nodes.append({"name": "output", "op": "output", "target": "output", "args": [last], "meta": None})
    groups = {"tp": list(range(world)), "pair": [0, 1] if rank < 2 else [2]}
    document = {"format": "layoutcheck-graph/1", "rank": rank, "config": {"groups": groups}, "nodes": nodes}
    return graph_from_json(document)


def every_exchange(rank: int) -> list[dict[str, Any]]:
    """All kinds, over groups whose lists are in another order than torch's, and of one and of two ranks."""
    turned = [2, 0, 1]
    sent = [[1, 2, 3], [3, 3, 0], [2, 2, 2]]
    mine = sent[rank]
    back = [sent[q][rank] for q in range(3)]
    out = [
        call("reduced", "tensor_cast.all_reduce.default", "x", rank, turned),
        call("rows", "tensor_cast.all_gather.default", "x", 0, rank, turned),
        call("columns", "tensor_cast.all_gather.default", "x", 1, rank, turned),
        call("scattered", "tensor_cast.reduce_scatter.default", "x", 0, rank, turned),
        call("scattered_columns", "tensor_cast.reduce_scatter.default", "x", 1, rank, turned),
        call("swapped", "tensor_cast.all_to_all.default", "x", back, mine, rank, [0, 1, 2]),
        call("turned", "tensor_cast.all_to_all.default", "x", None, None, rank, turned),
        call("sent", "_c10d_functional.broadcast.default", "x", 1, "tp"),
        call("paired", "_c10d_functional.all_reduce.default", "x", "sum", "pair"),
        call("dims", "_dtensor.shard_dim_alltoall.default", "x", 0, 1, "tp"),
    ]
    return out


def test_every_exchange() -> None:
    graphs = [program(r, every_exchange(r), 3) for r in range(3)]
    generator = torch.Generator().manual_seed(1)
    given = [{"x": torch.randn(6, 3, generator=generator, dtype=torch.float64)} for _ in graphs]
    there = run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=120)
    here = run(graphs, given, named_groups(graphs))
    for mine, theirs in zip(here, there):
        for name, value in mine.values.items():
            if name != "x":
                torch.testing.assert_close(theirs.values[name], value, msg=name)


@pytest.mark.parametrize("dtype", ["int16", "int64", "bool", "int8"])
def test_dtypes_of_exchanges(dtype: str) -> None:
    """What a backend does not exchange is widened, and comes back as it was."""
    from layoutcheck.ranks.distributed import Talker

    talker = Talker(0, torch.device("cpu"))
    x = torch.tensor([1, 0, 3]).to(getattr(torch, dtype))
    assert torch.equal(talker._out(x).to(x.dtype), x)
    assert talker._out(x).dtype is not torch.int16


# ---- whole programs


def write(graph: Any, folder: Path) -> str:
    import json

    path = folder / "graph.json"
    path.write_text(json.dumps(graph))
    return str(path)


def test_verify_on_gloo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(build("expert_parallel", "c10d", Size("pair", T=8, p=2)), tmp_path)
    assert main(["verify", path, "--ranks", "2", "--backend", "gloo", "--time-limit", "120"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"equal on 2 ranks \(\d+ values compared, \d+ taken over from the ranks; gloo processes equal to simulated ranks\)\n",
        said,
    )


def test_a_fault_differs_on_gloo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, _, node = next(f for f in FAULTS if f.key == "1").faulty("tensor_cast", Size("pair", T=8, p=2))
    path = write(graph, tmp_path)
    assert main(["verify", path, "--backend", "gloo", "--time-limit", "120"]) == 1
    assert capsys.readouterr().out.startswith(f"differs on 2 ranks, first at {node}: rank ")


def test_llama_on_four_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers' Llama, tensor-parallel over four gloo processes: its logits are those of the whole model."""
    pytest.importorskip("transformers")
    from ranks.sharded import exported, inputs_of, llama

    p, tokens = 4, 5
    graph, whole = exported(llama(p), tokens, p), llama(1)
    ids = torch.randint(0, 96, (1, tokens), generator=torch.Generator().manual_seed(2))
    given = [inputs_of(graph, whole, ids, r, p) for r in range(p)]
    graphs = [graph] * p
    there = run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=240)
    here = run(graphs, given, named_groups(graphs))
    with torch.no_grad():
        want = whole.double()(ids).logits
    last = next(iter(next(n for n in graph.nodes if n.op == "output").refs()))
    for mine, theirs in zip(here, there):
        # transformers computes its angles in float32
        torch.testing.assert_close(theirs.values[last], want, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(theirs.values[last], mine.outputs[0])
    path = str(tmp_path / "llama.json")
    save(graph, path)
    assert main(["verify", path, "--ranks", "4", "--backend", "gloo", "--time-limit", "240"]) == 0
    assert capsys.readouterr().out.startswith("equal on 4 ranks (")


# ---- what goes wrong


def pair() -> tuple[list[Graph], list[dict[str, Any]]]:
    calls = [call("reduced", "_c10d_functional.all_reduce.default", "x", "sum", "tp")]
    graphs = [program(r, calls, 2) for r in range(2)]
    return graphs, [{"x": torch.ones(2, 3, dtype=torch.float64)} for _ in graphs]


def instead(monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """Rank 1 does something else than to run."""
    worker = "runpy.run_module('layoutcheck.ranks.worker', run_name='__main__')"
    code = f"import runpy, sys, os, time\nif sys.argv[2] == '1':\n    {act}\n{worker}"
    monkeypatch.setattr(processes, "WORKER", ("-c", code))


def test_a_rank_that_dies(monkeypatch: pytest.MonkeyPatch, started: list[Any]) -> None:
    graphs, given = pair()
    instead(monkeypatch, "os.kill(os.getpid(), 9)")
    with pytest.raises(InputError, match=re.escape("--backend gloo: rank 1 ended by signal 9")):
        run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=120)
    assert len(started) == 2


def test_a_rank_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, given = pair()
    instead(monkeypatch, "raise MemoryError('too much')")
    with pytest.raises(InputError, match="rank 1 ended with exit code 1: MemoryError: too much"):
        run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=120)


def test_a_rank_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, given = pair()
    instead(monkeypatch, "time.sleep(1000)")
    with pytest.raises(
        InputError, match=r"--time-limit: the ranks did not end within 3 s: .*rank 1 has not begun"
    ):
        run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=3)


def test_exchanges_that_do_not_meet() -> None:
    graphs, given = pair()
    other = [call("gathered", "tensor_cast.all_gather.default", "x", 0, 1, [0, 1])]
    with pytest.raises(
        RankError, match=r"come to different exchanges: rank 0 to all_reduce, rank 1 to all_gather"
    ):
        run_processes(
            [graphs[0], program(1, other, 2)], given, named_groups(graphs), backend="gloo", limit=120
        )


def test_an_exchange_that_a_rank_leaves_out() -> None:
    graphs, given = pair()
    none = program(1, [call("same", "aten.relu.default", "x")], 2)
    with pytest.raises(
        RankError,
        match=r"reduced on rank 0: waits for an exchange that ranks \[1\] do not join|exchange broke off",
    ):
        run_processes([graphs[0], none], given, named_groups(graphs), backend="gloo", limit=120)


def test_shapes_that_do_not_fit() -> None:
    graphs, given = pair()
    given[1] = {"x": torch.ones(4, 3, dtype=torch.float64)}
    with pytest.raises(RankError, match=r"the ranks' shapes do not fit each other: \(2, 3\), \(4, 3\)"):
        run_processes(graphs, given, named_groups(graphs), backend="gloo", limit=120)


def test_backends_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(build("tensor_parallel", "tensor_cast", Size()), tmp_path)
    assert main(["verify", path, "--backend", "smoke"]) == 2
    said = capsys.readouterr().err
    assert said == "error: --backend smoke: there is no such backend; there are gloo, nccl, hccl\n"
    if not torch.distributed.is_nccl_available():
        assert main(["verify", path, "--backend", "nccl"]) == 2
        assert capsys.readouterr().err == "error: --backend nccl: this torch does not have it; it has gloo\n"


def test_the_worker_ends_with_what_started_it(tmp_path: Path, started: list[Any]) -> None:
    """Its standard input closes when the other side of the pipe is gone, however that went."""
    script = (
        "import sys; from pathlib import Path; import layoutcheck.ranks.worker as w\n"
        "w._work = lambda *_: w.threading.Event().wait()\nw.main(Path(sys.argv[1]), 0)"
    )
    process = processes.subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1


# ---- inside of torchrun


def in_torchrun(path: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "layoutcheck"]
    words = ["verify", path, "--backend", "gloo", "--time-limit", "120", *more]
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=240, env={**os.environ, **variables}
    )


def test_inside_of_torchrun(tmp_path: Path) -> None:
    """Two processes of one program: one of them reports."""
    path = write(build("sequence_parallel", "tensor_cast", Size("pair", T=8, p=2)), tmp_path)
    done = in_torchrun(path, "--ranks", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal on 2 ranks (") == 1
    path = write(build("sequence_parallel", "tensor_cast", Size()), tmp_path)
    done = in_torchrun(path)
    assert done.returncode != 0
    assert done.stderr.count("error: WORLD_SIZE=2: the graph has 4 ranks") == 1


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    path = write(build("sequence_parallel", "tensor_cast", Size("pair", T=8, p=2)), tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = subprocess.run(
            [sys.executable, "-m", "layoutcheck", "verify", path, "--backend", "gloo"],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, **given},
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"error: MASTER_PORT={port}: the port is taken by another program"


def test_nothing_stays_when_the_command_is_killed(tmp_path: Path) -> None:
    """What is killed cannot clean up: its ranks end, and take the folder with them."""
    path, place = tmp_path / "graph.json", tmp_path / "temporary"
    save(graph_from_json(build("tensor_parallel", "tensor_cast", Size("pair", T=8, p=2))), path)
    place.mkdir()
    command = subprocess.Popen(
        [sys.executable, "-m", "layoutcheck", "verify", str(path), "--backend", "gloo"],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not list(place.glob("layoutcheck-*/1.err")) and command.poll() is None:
            time.sleep(0.01)
        assert command.poll() is None
    finally:
        command.kill()
        command.wait()
    for _ in range(600):
        if not list(place.iterdir()):
            break
        time.sleep(0.1)
    assert not list(place.iterdir())
