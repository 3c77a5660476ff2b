"""The package as it is installed: what is in the wheel, and what an import costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import layoutcheck
from layoutcheck.resources import rules_dir


def python(code: str, *, cwd: Path, path: Path) -> str:
    """Run code in a fresh interpreter that finds layoutcheck in ``path`` and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """A folder into which the wheel has been unpacked."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)],
        cwd=repo_root,
        check=True,
        capture_output=True,
    )
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_rules_are_found_in_a_checkout(repo_root: Path) -> None:
    assert rules_dir() == repo_root / "rules"


def test_rules_are_found_once_installed(installed: Path, repo_root: Path, tmp_path: Path) -> None:
    folder = python(
        "from layoutcheck.resources import rules_dir; print(rules_dir())", cwd=tmp_path, path=installed
    )
    assert Path(folder) == installed / "layoutcheck" / "_rules"
    shipped = {str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file()}
    source = repo_root / "rules"
    assert shipped == {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}
    assert shipped


def test_the_wheel_holds_the_data_files(installed: Path) -> None:
    for name in ("py.typed", "explain/codes/LC203.md", "reports/report-1.schema.json"):
        assert (installed / "layoutcheck" / name).is_file(), name
    (metadata,) = installed.glob("*.dist-info")
    assert metadata.name == f"layoutcheck-{layoutcheck.__version__}.dist-info"
    assert (metadata / "licenses" / "LICENSE").is_file()
    requires = [
        line for line in (metadata / "METADATA").read_text().splitlines() if line.startswith("Requires-Dist")
    ]
    core = {line.split()[1].split(">")[0] for line in requires if "extra ==" not in line}
    assert core == {"attrs", "click", "networkx", "sympy"}


def test_the_installed_command_explains_and_reads_rules(installed: Path, tmp_path: Path) -> None:
    code = "from layoutcheck.cli import main; raise SystemExit(main(['explain', 'LC203']))"
    assert python(code, cwd=tmp_path, path=installed).startswith("# LC203 mixed-tokens")
    code = "from layoutcheck.cli import main; raise SystemExit(main(['rules', 'list', 'aten.mm']))"
    assert "aten.mm" in python(code, cwd=tmp_path, path=installed)


def test_importing_the_package_loads_nothing_heavy(repo_root: Path) -> None:
    code = "import sys, json, layoutcheck; print(json.dumps(sorted(sys.modules)))"
    loaded = {name.split(".")[0] for name in json.loads(python(code, cwd=repo_root, path=repo_root))}
    assert "layoutcheck" in loaded
    assert not loaded & {"torch", "sympy", "numpy", "networkx", "scipy", "click", "attr", "attrs", "orjson"}


def test_the_version_option_loads_nothing_heavy(repo_root: Path) -> None:
    code = (
        "import sys, json, contextlib, io; from layoutcheck.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): assert main(['--version']) == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = {name.split(".")[0] for name in json.loads(python(code, cwd=repo_root, path=repo_root))}
    assert "click" in loaded
    assert not loaded & {"torch", "sympy", "numpy", "networkx", "scipy", "orjson"}


def test_every_public_name_can_be_had() -> None:
    for name in layoutcheck.__all__:
        assert getattr(layoutcheck, name) is not None
    assert set(layoutcheck.__all__) <= set(dir(layoutcheck))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        layoutcheck.nonsense  # noqa: B018
