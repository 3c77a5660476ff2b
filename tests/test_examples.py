"""The shipped exports: real, small, free of the machine they were made on, and what they claim to be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import layoutcheck

EXPORTS = ("glm5_two_layers", "shared_expert_right", "shared_expert_right_rank1", "shared_expert_fault")


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_small_and_hold_no_weights_and_no_machine(name: str, repo_root: Path) -> None:
    path = repo_root / "examples" / "exports" / f"{name}.pt2"
    assert path.stat().st_size < 150_000
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert not [inner for inner in names if "/data/" in inner and "/.data/" not in inner]
        text = archive.read(f"{name}/models/model.json").decode()
    files = set(re.findall(r'File \\"([^"\\]*)\\"', text))
    assert files and not [file for file in files if file.startswith("/")]
    assert "site-packages" not in text
    targets = {node["target"] for node in json.loads(text)["graph_module"]["graph"]["nodes"]}
    assert any("_c10d_functional" in target for target in targets) is (name != "glm5_two_layers")


@pytest.mark.parametrize(
    "names",
    [
        ("glm5_two_layers",),
        ("shared_expert_right",),
        ("shared_expert_right_rank1",),
        ("shared_expert_right", "shared_expert_right_rank1"),
    ],
)
def test_exports_without_a_fault_are_clean(names: tuple[str, ...], repo_root: Path) -> None:
    graph, *others = [layoutcheck.load(repo_root / "examples" / "exports" / f"{name}.pt2") for name in names]
    report = layoutcheck.check(graph, others=others)
    assert [(finding.code, finding.node) for finding in report.findings] == []
    assert report.statistics.nodes == len(graph.nodes)
    assert report.notes == ()  # what is taken whole by default are weights


def test_the_fault_is_found_at_the_all_reduce_of_each_layer(repo_root: Path) -> None:
    report = layoutcheck.check(repo_root / "examples" / "exports" / "shared_expert_fault.pt2")
    assert [(finding.code, finding.node) for finding in report.findings] == [
        ("LC203", "all_reduce"),
        ("LC203", "all_reduce_1"),
    ]
    for finding in report.findings:
        assert finding.location is not None
        source = (repo_root / finding.location.file).read_text().splitlines()[finding.location.line - 1]
        assert "all_reduce(y)" in source
        assert finding.module.endswith("mlp.shared")
        assert len(finding.fixes) == 2 and all(fix.verified for fix in finding.fixes)


def test_the_readme_shows_what_the_check_prints(repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo_root / "tools" / "update-readme"), "--check"], check=False
    )
    assert done.returncode == 0, "run tools/update-readme"


def test_the_readme_library_example_runs(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo_root)
    blocks = re.findall(r"```python\n(.*?)```", (repo_root / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    code = f"{blocks[0]}\n{blocks[1].replace('layoutcheck.rule', 'import layoutcheck; layoutcheck.rule', 1)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("LC203") == 4  # the loop and the text report


class Ranks:
    """Runs a function once a rank, in threads that meet at each collective."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.barrier = threading.Barrier(world)
        self.local = threading.local()
        self.slots: list[Any] = [None] * world

    def exchange(self, value: Any) -> list[Any]:
        """Return the values that all ranks gave, in rank order."""
        self.slots[self.local.rank] = value
        self.barrier.wait(timeout=60)
        values = list(self.slots)
        self.barrier.wait(timeout=60)
        return values

    def run(self, function: Any) -> list[Any]:
        """Return ``function(rank)`` for each rank."""
        results: list[Any] = [None] * self.world

        def body(rank: int) -> None:
            self.local.rank = rank
            try:
                results[rank] = function(rank)
            except BaseException as error:
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


@pytest.mark.parametrize("tokens", [16, 18, 9, 5])
def test_the_right_pair_gives_the_single_device_result_and_the_faulty_one_does_not(
    tokens: int, repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(repo_root / "examples"))
    import parallel_layers as pair

    torch.manual_seed(7)
    whole = pair.LayerPair().double().eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(tokens, pair.HIDDEN, dtype=torch.float64)

    def rank_model(rank: int, split: bool) -> Any:
        model = pair.LayerPair(rank, split).double().eval()
        state = dict(whole.state_dict())
        if split:
            for name in [name for name in state if "shared." in name]:
                state[name] = state[name].chunk(pair.WORLD, 0 if "up_proj" in name else 1)[rank]
        model.load_state_dict(state)
        return model

    def parallel(split: bool) -> list[Any]:
        ranks = Ranks(pair.WORLD)
        monkeypatch.setattr(pair, "all_gather", lambda y: torch.cat(ranks.exchange(y)))
        monkeypatch.setattr(pair, "all_reduce", lambda y: sum(ranks.exchange(y)))

        def one(rank: int) -> Any:
            with torch.no_grad():
                return rank_model(rank, split)(x)

        return ranks.run(one)

    # One device: every collective is the identity and a rank's own tokens are all tokens.
    with monkeypatch.context() as single, torch.no_grad():
        single.setattr(pair, "all_gather", lambda y: y)
        single.setattr(pair, "own_tokens", lambda y, rank: y)
        expected = whole(x)

    for result in parallel(split=False):
        torch.testing.assert_close(result, expected)
    for result in parallel(split=True):
        assert result.shape == expected.shape
        assert not torch.allclose(result, expected, rtol=0.01, atol=0.01)
