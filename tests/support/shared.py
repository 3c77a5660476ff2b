"""The reference graphs, read in place: what is known of each, and loading them in the JSON form."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from layoutcheck import readers
from layoutcheck.json_form import graph_to_json

from .builder import Json

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "graphs"

# roots in `after`, as (code, node)
ROOTS: dict[str, set[tuple[str, str]]] = {
    "glm5_prefill_repeated": {("LC108", "index_2")},
    "glm5_prefill_expanded6": {("LC108", "index_2")},
    "glm5_prefill_noembtp_expanded6": {("LC101", "add_rms_norm2_default_9")},
    "glm5_prefill_rank3_expanded5": {("LC403", "slice_17"), ("LC403", "slice_37"), ("LC108", "index_2")},
    "glm5_prefill_mtp1_repeated": {("LC101", "cat_4"), ("LC108", "index_2")},
    "glm5_prefill_4100tok_expanded6": set(),
    "glm5_decode_dp8tp4_spon": set(),
    "dsv3_bf16_prefill_repeated": {("LC108", "index_2")},
    "dsv3_bf16_prefill_expanded5": {
        ("LC101", "add_rms_norm2_default_1"),
        ("LC101", "add_rms_norm_default"),
    },
    "dsv32_prefill_repeated": {("LC101", "add_rms_norm_dynamic_quant2_symmetric_default")},
    "qwen3_8b_bf16_prefill_expanded4": set(),
    "qwen3_8b_prefill_expanded4": set(),
}
BEFORE_ONLY = ("glm5_prefill_expanded78_e32", "glm5_prefill_repeated_e32")
SHARED_EXPERT = {("LC203", "all_reduce"), ("LC203", "all_reduce_1")}
OTHER_ROOTS: dict[str, set[tuple[str, str]]] = {
    "tp_llama_sp_dynamic.json.gz": {("LC401", "*")},
    "tp_hf_glm_moe_dsa_ws4.json.gz": set(),
    "tp_hf_llama_ws4.json.gz": set(),
    "glm_moe_dsa_true4_meta.pt2": set(),
    "deepseek_v3_true4_meta.pt2": set(),
    "glm_moe_dsa_tiny.pt2": set(),
    "qwen3_moe_tiny.pt2": set(),
    "llama_tiny.pt2": set(),
    "mega_sp_ws4_r0.pt2": set(),
    "mega_sp_ws4_r1.pt2": set(),
    "mega_dsa_cp_ws4_r0.pt2": SHARED_EXPERT,
    "mega_dsa_cp_ws4_r1.pt2": SHARED_EXPERT,
    "hf_megamoe_T9_ws4_r0_dyn_strict.pt2": set(),
    "hf_megamoe_T9_ws4_r3_static_strict.pt2": set(),
    "tp_llama_sp_ws4_dyn.pt2": set(),
}
ALL_ROOTS: dict[str, set[tuple[str, str]]] = {
    **{f"{name}.before.json.gz": set() for name in (*ROOTS, *BEFORE_ONLY)},
    **{f"{name}.after.json.gz": roots for name, roots in ROOTS.items()},
    **OTHER_ROOTS,
}
CLEAN = tuple(name for name, roots in ALL_ROOTS.items() if not roots)
# on one device there is nothing to get wrong between ranks
PARALLEL_CLEAN = tuple(
    name for name in CLEAN if not name.endswith(".pt2") or name.startswith(("mega", "hf_", "tp_"))
)
LARGE = ("glm5_prefill_expanded78_e32.before.json.gz",)


@cache
def _text(name: str) -> str:
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"a reference graph is not there: {path}")
    if name.endswith(".json.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return json.dumps(graph_to_json(readers.load(path)))


def load(name: str) -> Json:
    """A fresh copy of a reference graph in the JSON form. Skips the test where the folder is absent."""
    graph: Json = json.loads(_text(name))
    return graph
