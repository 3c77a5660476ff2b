"""The memory command, caches, the verdict, and models from configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from layoutcheck.cli.cost_cmd import cost_command
from layoutcheck.cli.memory_cmd import memory_command
from layoutcheck.errors import InputError
from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.cache import Cache, add_cache
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName
from layoutcheck.memory.verdict import usable, verdict
from layoutcheck.models import load_model, model_from_dict
from layoutcheck.units import GIB, parse_size

GLM = ["glm-5.1", "--tp", "16", "--dp", "2", "--ep", "32", "--mode", "dsa-cp", "--quant", "W8A8"]


def run(*words: str) -> tuple[int, str]:
    """Run the command as the command line does: its return value is the exit code."""
    runner = CliRunner()
    with runner.isolation() as streams:
        code = memory_command.main(list(words), standalone_mode=False)
        return int(code or 0), streams[0].getvalue().decode()


def test_table_bars_and_json_agree() -> None:
    code, text = run(*GLM, "--engine", "parameters-only")
    assert code == 0
    assert "39.7298 GiB  in all" in text and "o_proj" in text
    code, text = run(*GLM, "--engine", "parameters-only", "--format", "json")
    record = json.loads(text)
    assert record["format"] == "layoutcheck-memory/1"
    assert record["total_bytes"] == sum(line["bytes"] for line in record["lines"])
    assert sum(record["by_category"].values()) == record["total_bytes"]
    assert round(record["total_bytes"] / GIB, 4) == 39.7298
    code, text = run(*GLM, "--format", "bars")
    assert "expert-parallel" in text and "█" in text
    code, text = run(*GLM, "--all")
    assert "W_UK_T" in text and "= 79*num_attention_heads*qk_nope_head_dim*kv_lora_rank*2 =" in text


def test_ranks_that_differ_are_grouped_and_the_line_is_named() -> None:
    code, text = run(*GLM, "--distribute", "q_b_proj", "--ranks")
    assert code == 0
    rows = text.splitlines()
    assert len(rows) == 3
    assert rows[1].endswith("ranks 14, 15, 30, 31")
    assert rows[2].split() == ["-0.0312", "GiB", "model.layers.{layer}.self_attn.q_b_proj.weight"]


def test_explain_total() -> None:
    code, text = run("glm-5.1", "--explain-total", "28.452GiB", "--ep", "32", "--given", "ep")
    assert code == 0
    assert "tp16 dp2 ep32, parameters-only, embedding replicated" in text
    assert int(text.splitlines()[0].rsplit(":", 1)[1].split()[0]) >= 2
    words = ["glm-5.1", "--explain-total", "59GiB", "--within", "1", "--world", "16", "--format", "json"]
    code, text = run(*words)
    record = json.loads(text)
    fits = [row for row in record["deployments"] if row["fits"]]
    assert fits and all(abs(row["off"]) <= record["tolerance"] for row in fits)


def test_the_exit_code_says_whether_it_fits() -> None:
    words = [*GLM, "--context", "65536", "--sequences", "4", "--utilisation", "0.9", "--memory"]
    code, text = run(*words, "64GiB", "--bandwidth", "100")
    assert code == 1 and "does not fit" in text and " ms at 100 GB/s" in text
    code, text = run(*words, "96GiB")
    assert code == 0 and "\nfits: " in text
    code, text = run(*words, "96GiB", "--format", "json")
    assert json.loads(text)["verdict"]["fits"] is True


def test_a_device_brings_memory_and_bandwidth() -> None:
    words = [*GLM, "--context", "65536", "--sequences", "4", "--utilisation", "0.9"]
    code, text = run(*words, "--device", "ascend-a3")
    assert code == 1 and "of 57.6000 GiB" in text and " ms at 196 GB/s" in text
    code, text = run(*words, "--device", "ascend-a3", "--memory", "96GiB", "--bandwidth", "10")
    assert code == 0 and " ms at 10 GB/s" in text


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-model"],
        ["glm-5.1", "--mode", "no-such-mode"],
        ["glm-5.1", "--engine", "no-such-engine"],
        ["glm-5.1", "--quant", "W1A1"],
        ["glm-5.1", "--tp", "0"],
        ["glm-5.1", "--tp", "5"],
        ["glm-5.1", "--tp", "4", "--ep", "3"],
        ["glm-5.1", "--rank", "1"],
        ["glm-5.1", "--distribute", "no_such_proj"],
        ["glm-5.1", "--distribute", "q_b_proj", "--engine", "vllm"],
        ["glm-5.1", "--explain-total", "many"],
        ["glm-5.1", "--memory", "64GiB", "--utilisation", "2"],
        ["glm-5.1", "--device", "no-such-device"],
        ["glm-5.1", "--scheme", "*.o_proj=FLOAT"],
        ["glm-5.1", "--quant", "W8A8", "--scheme", "o_proj"],
        ["qwen3-8b", "--mode", "dsa-cp"],
        ["qwen3-8b", "--tp", "3"],
        ["glm-5.1", "--context", "10", "--cache-dtype", "float3"],
        ["glm-5.1", "--context", "10", "--block", "-1"],
    ],
    ids=" ".join,
)
def test_bad_input_is_refused(words: list[str]) -> None:
    with pytest.raises(InputError):
        run(*words)


def test_a_checkpoint_folder_with_a_description(tmp_path: Path) -> None:
    figures = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(figures))
    entries: dict[str, Any] = {}
    at = 0
    name = "model.layers.0.mlp.down_proj"
    for key, dtype, shape, width in (
        (f"{name}.weight", "I8", [64, 128], 1),
        (f"{name}.deq_scale", "F32", [64], 4),
    ):
        size = width * shape[0] * (shape[1] if len(shape) > 1 else 1)
        entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
    (tmp_path / "quant_model_description.json").write_text(json.dumps({f"{name}.weight": "W8A8"}))
    code, text = run(str(tmp_path), "--tp", "2", "--format", "json")
    assert code == 0
    sizes = {row["name"].rsplit(".", 1)[-1]: row["bytes"] for row in json.loads(text)["lines"]}
    assert sizes["weight"] == 64 * 64 and sizes["deq_scale"] == 64 * 4
    assert sizes["aclnn_input_scale"] == 64 * 2


def test_the_latent_cache_and_the_indexers_that_own_one() -> None:
    def caches(model: str, **options: Any) -> dict[str, int]:
        config, plan = load_model(model), Plan(Parallel(4), mtp=False)
        ledger = weight_ledger(config, plan)
        add_cache(ledger, config, plan, Cache(**options))
        return {key: ledger.total([key]) for key in ("kv-cache", "indexer-cache")}

    # 512 + 64 latent values and one key of 128 a token and layer
    found = caches("glm-5.1", context=1000)
    assert found == {"kv-cache": 78 * 1024 * (512 + 64) * 2, "indexer-cache": 78 * 1024 * 128 * 2}
    # 21 of 78 layers own an indexer
    assert caches("glm-5.2", context=1000)["indexer-cache"] == 21 * 1024 * 128 * 2
    narrow = caches("glm-5.1", context=1000, sequences=3, block=64, dtype="int8", index_dtype="int8")
    assert narrow == {"kv-cache": 3 * 78 * 1024 * 576, "indexer-cache": 3 * 78 * 1024 * (128 + 2)}
    shared = caches("glm-5.1", context=1000, ranks=3)
    assert shared["kv-cache"] == 78 * 384 * 576 * 2  # ceil(1000 / 3) = 334 tokens, three blocks
    # grouped queries: keys and values of the rank's own heads
    assert caches("qwen3-8b", context=128) == {
        "kv-cache": 36 * 128 * 2 * (8 // 4) * 128 * 2,
        "indexer-cache": 0,
    }


def test_key_value_heads_repeat_when_there_are_fewer_than_ranks() -> None:
    config = load_model("qwen3-8b")
    ledger = weight_ledger(config, Plan(Parallel(16)))
    (line,) = [x for x in ledger.lines if "qkv_proj.weight" in x.name]
    assert line.bytes == 36 * (2 * 128 + 128 + 128) * 4096 * 2


def test_what_fits_is_the_most_that_fits() -> None:
    config, plan, scheme = load_model("glm-5.1"), Plan(Parallel(16, 2, 32)), ByName("W8A8")
    capacity = usable(64 * GIB, 0.9, GIB)
    assert capacity == int(64 * GIB * 0.9) - GIB

    def total(sequences: int) -> int:
        ledger = weight_ledger(config, plan, scheme)
        add_cache(ledger, config, plan, Cache(20_000, sequences))
        return ledger.total()

    ledger = weight_ledger(config, plan, scheme)
    add_cache(ledger, config, plan, Cache(20_000, 1))
    judged = verdict(ledger, config, plan, capacity, Cache(20_000, 1), scheme)
    most = judged.most_sequences
    assert most is not None and most > 1
    assert total(most) <= capacity < total(most + 1)
    assert judged.most_tokens % 128 == 0
    assert judged.slack == capacity - ledger.total() and judged.fits


def test_an_option_saves_what_it_says() -> None:
    config, scheme = load_model("glm-5.1"), ByName("W8A8")
    plan = Plan(Parallel(16, 2, 32), modes=("dsa-cp",), embedding="replicated")
    base = weight_ledger(config, plan, scheme)
    options = {o.change: o for o in verdict(base, config, plan, GIB, quantisation=scheme).options}
    spread = options["distribute o_proj over layers"]
    changed = weight_ledger(config, plan.but(distribute=("o_proj",)), scheme)
    assert spread.saving == base.static - changed.static > 0
    assert spread.wire_bytes == (78 - 5) * 16384 * 6144
    assert options["keep o_proj divided and gather it"].wire_bytes == 78 * 16384 * 6144 * 15 // 16
    divided = options["divide the embedding"]
    assert divided.saving == 154880 * 6144 * 2 * 15 // 16
    assert divided.cost


@pytest.mark.parametrize(
    ("text", "size", "half"),
    [
        ("28.452GiB", 28452 * GIB // 1000, -(-GIB // 2000)),
        ("80 GB", 80 * 10**9, 5 * 10**8),
        ("512MiB", 512 << 20, 1 << 19),
        ("1024", 1024, 0),
        ("1.5K", 1500, 50),
    ],
)
def test_sizes(text: str, size: int, half: int) -> None:
    assert parse_size(text) == (size, half)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"hidden_size": "wide"},
        {"hidden_size": True},
        {"hidden_size": None},
        {"vocab_size": -1},
        {"torch_dtype": "float3"},
        {"linear_attn_config": {"num_heads": 4}},
        {"compress_ratios": [4]},
        {"n_routed_experts": 4, "moe_layer_freq": [1]},
        {"n_routed_experts": 4, "moe_intermediate_size": 8, "mlp_layer_types": ["dense"]},
        {
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "index_head_dim": 8,
            "index_n_heads": 1,
            "indexer_types": ["full"],
        },
    ],
    ids=str,
)
def test_configs_that_are_refused(changes: dict[str, Any]) -> None:
    figures = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
    }
    assert model_from_dict(figures).num_layers == 2
    with pytest.raises(InputError):
        model_from_dict({**figures, **changes})


def test_models_are_found_by_name_and_file(tmp_path: Path) -> None:
    assert load_model("GLM_5.1") == load_model("zai-org/GLM-5.1")
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 1, "hidden_size": 2}')
    with pytest.raises(InputError, match="twice"):
        load_model(path)
    path.write_text("[")
    with pytest.raises(InputError, match="JSON"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="known are"):
        load_model("unheard-of")


def milliseconds(*words: str) -> float:
    """What `layoutcheck cost` says of a prefill step of GLM-5.1 on an A3 die."""
    fixed = ["glm-5.1", "--tokens", "8192", "--hardware", "ascend-a3", "--format", "json", "--tp", "16"]
    with CliRunner().isolation() as streams:
        cost_command.main([*fixed, *words], standalone_mode=False)
        return float(json.loads(streams[0].getvalue())["total"]["us"]) / 1e3


def test_options_cost_the_time_that_the_cost_model_gives_both_plans() -> None:
    code, text = run(*GLM, "--device", "ascend-a3", "--format", "json")
    assert code == 0
    record = json.loads(text)
    found = {o["change"]: o["time_us"] for o in record["verdict"]["options"]}
    plan = ["--contract", "dsa-cp-prefill", "--quant", "w8a8"]
    here = milliseconds(*plan, "--dp", "2", "--ep", "32", "--mtp")
    others = {
        "without multi-token prediction": [*plan, "--dp", "2", "--ep", "32"],
        "dp 4, ep 64": [*plan, "--dp", "4", "--ep", "64", "--mtp"],
        "without dsa-cp": ["--quant", "w8a8", "--dp", "2", "--ep", "32", "--mtp"],
    }
    for change, words in others.items():
        assert found[change] / 1e3 == pytest.approx(milliseconds(*words) - here, rel=1e-9)
    assert found["without dsa-cp"] > 0 > found["without multi-token prediction"]
    assert f"8192 tokens more or less than {here:.2f} ms" in record["notes"][-1]


def test_a_plan_that_no_decoder_is_written_for_has_no_times() -> None:
    words = ["glm-5.1", "--tp", "8", "--ep", "4", "--etp", "2", "--quant", "W8A8", "--device", "ascend-a3"]
    _, text = run(*words, "--engine", "vllm")
    assert "note: no times of options: a step whose experts are cut over ranks cannot be timed" in text
    assert "ms a step" not in text


def test_smaller_steps_of_a_graph_carry_their_time(repo_root: Path) -> None:
    graph = str(repo_root / "examples" / "exports" / "shared_expert_fault.pt2")
    code, text = run(graph, "--at", "T=4096", "--device", "h100", "--format", "json")
    halves = [o for o in json.loads(text)["verdict"]["options"] if o["change"].startswith("steps of 2048")]
    with CliRunner().isolation() as streams:
        times = []
        for tokens in ("4096", "2048"):
            words = [graph, "--tokens", tokens, "--hardware", "h100", "--format", "json"]
            cost_command.main(words, standalone_mode=False)
        out = streams[0].getvalue().decode()
        decoder, at = json.JSONDecoder(), 0
        while at < len(out.rstrip()):
            value, at = decoder.raw_decode(out, at)
            at += 1
            times.append(value["total"]["us"])
    assert code == 0 and len(halves) == 1
    assert halves[0]["time_us"] == pytest.approx(2 * times[1] - times[0], rel=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--context", "4096"], "--context: is for models; a graph is what it is"),
        (["--quant", "W8A8"], "--quant: is for models; a graph is what it is"),
        (["--no-mtp"], "--mtp: is for models; a graph is what it is"),
        (["--engine", "vllm-ascend"], "--engine: is for models; a graph is what it is"),
        (["--ranks"], "--ranks: is for models; a graph is what it is"),
    ],
)
def test_a_graph_has_no_options_of_models(repo_root: Path, words: list[str], message: str) -> None:
    graph = str(repo_root / "examples" / "exports" / "shared_expert_fault.pt2")
    with pytest.raises(InputError) as caught:
        run(graph, "--at", "T=64", *words)
    assert str(caught.value) == message


@pytest.mark.parametrize("words", [["--at", "T=4"], ["--assume", "T % 4 == 0"], ["--group", "tp=4"]])
def test_a_model_has_options_of_graphs_only_beside_one(words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        run(*GLM, *words)
    assert str(caught.value) == f"{words[0]}: is for graphs: a model has them with --graph GRAPH"
