"""The wrong file for a command: one line that says what the file is or why it is none, and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.cli import main
from layoutcheck.documents import kind_of, read_document
from layoutcheck.errors import InputError

CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 96}
CONTRACT = {"format": "layoutcheck-contract/1", "name": "mine"}
ZIP = b"PK\x03\x04 cut"
GZIP = b"\x1f\x8b cut"

COMMANDS = {
    "memory": ["memory", "{}"],
    "cost": ["cost", "{}", "--hardware", "h100", "--tokens", "64"],
    "sweep": ["sweep", "{}", "--hardware", "h100"],
    "check": ["check", "{}"],
    "graph": ["memory", "glm-5.1", "--graph", "{}"],
    "hardware": ["cost", "glm-5.1", "--tokens", "8", "--hardware", "{}"],
    "engine": ["memory", "glm-5.1", "--engine", "{}"],
    "quant": ["memory", "glm-5.1", "--quant", "{}"],
    "config": ["memory", "glm-5.1", "--config", "{}"],
    "table": ["cost", "glm-5.1", "--tokens", "8", "--hardware", "h100", "--table", "{}"],
    "replay": ["replay", "{}"],
}
WANTED = {
    **dict.fromkeys(("memory", "cost", "sweep", "config"), "a model's config.json"),
    **dict.fromkeys(("check", "graph"), "a layoutcheck-graph/1 file"),
    "hardware": "a hardware file",
    "engine": "an engine profile",
    "quant": "a description of quantised tensors",
    "table": "a mapping of tables",
    "replay": "a counter-example",
}


def told(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says of a file, without the file's name."""
    assert main([word.replace("{}", str(path)) for word in COMMANDS[command]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: ") and str(path) in err
    return err.removeprefix(f"error: {path}: ").rstrip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_of_another_kind(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = WANTED[command]
    path = tmp_path / "file.json"
    path.write_text(json.dumps(CONTRACT))
    assert told(command, path, capsys) == f"this is a layoutcheck-contract/1 file, not {wanted}"
    if wanted != "a model's config.json":
        path.write_text(json.dumps(CONFIG))
        assert told(command, path, capsys) == f"this is a model's config.json, not {wanted}"
    path.write_text("[1]")
    assert wanted in told(command, path, capsys) or command in ("check", "graph")
    path.write_text('{"a": [1,')
    assert "no JSON" in told(command, path, capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_none(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    assert "no such file" in told(command, path, capsys)
    path.write_bytes(b"")
    assert told(command, path, capsys) == "the file is empty"
    for data, kind in ((ZIP, "archive"), (GZIP, "gzip")):
        path.write_bytes(data)
        # a command that takes graphs reads on, and finds the damage
        assert kind in told(command, path, capsys)
    path.write_bytes(b"not\xff text")
    assert "no text" in (said := told(command, path, capsys)) or "neither" in said


@pytest.mark.parametrize("command", ["memory", "cost", "sweep"])
def test_a_text_a_folder_and_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert told(command, path, capsys).startswith("this is no JSON, so not a model's config.json: Expecting")
    assert told(command, tmp_path, capsys) == "this folder holds no config.json"
    path.write_text("{}")
    assert told(command, path, capsys) == "the config has no num_hidden_layers"
    words = ["" if word == "{}" else word for word in COMMANDS[command]]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("error: give ")


def test_a_sweep_is_of_models_not_of_graphs(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repo_root / "examples" / "exports" / "shared_expert_right.pt2"
    assert told("sweep", path, capsys) == "this is an archive (.pt2 or .zip), not a model's config.json"


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            found = read_document(file.name, "a plan")
        except InputError as error:
            assert error.where == file.name
        else:
            assert isinstance(found, dict)


@given(
    st.dictionaries(
        st.sampled_from(("format", "num_hidden_layers", "weight_map", "text_config")),
        st.integers() | st.text(),
    )
)
def test_kinds_are_told_of_any_object(document: dict[str, object]) -> None:
    kind = kind_of(document)
    assert kind is None or kind.startswith(("a ", "an "))


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"weights": {"a": "row", "a": "column"}}')
    with pytest.raises(InputError, match="the key 'a' stands twice in one object"):
        read_document(path, "a plan")
    path.write_text('{"n": ' + "1" * 5000 + "}")
    with pytest.raises(InputError, match="this is no JSON, so not a plan"):
        read_document(path, "a plan")
