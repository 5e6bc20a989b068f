"""Tables of accelerators and language models: figures that can be counted again, names that are never guessed, memory that must do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.hardware.devices import DEVICES, Device, device
from headway.identification.hardware.llms import LLMS, Llm, check_memory, llm


@pytest.mark.parametrize(("name", "nearest"), [("h101", "h100"), ("b3000", "b300"), ("MI300", "mi300x"), ("rtx 4091", "rtx-4090")])
def test_case_e3_an_unknown_device_is_refused_with_the_nearest_names(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match="unknown device") as caught:
        device(name)
    assert repr(name) in str(caught.value)
    assert nearest in str(caught.value)


def test_case_e3_an_unknown_llm_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"unknown llm 'qwen3-33b'; did you mean .*qwen3-32b"):
        llm("qwen3-33b")


@given(st.text(max_size=20))
def test_case_e3_no_name_falls_back_to_another(name: str) -> None:
    try:
        found = device(name)
    except ValueError:
        return
    letters = "".join(c for c in name.lower() if c.isalnum())
    own = ["".join(c for c in n if c.isalnum()) for n in (found.name, *found.aliases)]
    assert any(n in letters for n in own)


def test_case_e2_weights_that_do_not_fit_are_refused_before_anything_else() -> None:
    with pytest.raises(ValueError, match=r"llama-3-70b take 141 GB at 2 bytes .* holds 86 GB; it takes at least 2"):
        check_memory(llm("llama-3-70b"), device("h100"))
    check_memory(llm("llama-3-70b"), device("h100"), tp=2)
    check_memory(llm("llama-3-70b"), device("h100"), weight_bytes=1.0)
    check_memory(llm("gpt-oss-120b"), device("h100"))  # published in four bits
    check_memory(llm("deepseek-r1"), device("h200"), tp=8)
    with pytest.raises(ValueError, match="tp must be at least 1"):
        check_memory(llm("qwen3-8b"), device("h100"), tp=0)


@pytest.mark.parametrize("name", list(DEVICES))
def test_a_device_is_found_by_each_of_its_names(name: str) -> None:
    row = DEVICES[name]
    for given_name in (name, *row.aliases, name.upper(), name.replace("-", "_"), f"NVIDIA {name}"):
        assert device(given_name) is row
    assert 0 < row.link_bytes_per_s < row.bandwidth_bytes_per_s < row.flops <= row.eight_bit_flops
    # operations for one byte: whatever is built lies in this range, and a slip of a thousand does not
    assert 30 < row.flops / row.bandwidth_bytes_per_s < 600
    assert 16e9 < row.memory_bytes < 310e9


def test_no_name_means_two_things() -> None:
    for rows in (DEVICES.values(), LLMS.values()):
        names = [name for row in rows for name in (row.name, *row.aliases)]
        assert len(set(names)) == len(names)


def test_a_model_or_device_is_built_by_hand() -> None:
    own = Llm("own", 1e9, 1e9, 0.1e9, 0.1e9, 16, 16, 4, 2 * 4 * 64, 4.0 * 64)
    card = Device("card", 8e9, 1e12, 1e14, 2e14, 1e10)
    check_memory(own, card)
    assert own.kv_token_bytes() == 16 * 2 * 4 * 64 * 2
    assert own.prompt_token_flops() == pytest.approx(2 * 0.8e9)
    assert own.pair_flops() == 4 * 16 * 16 * 64


@pytest.mark.parametrize(
    ("name", "kv_bytes"),
    [("llama-3-70b", 327_680), ("llama-2-7b", 524_288), ("qwen3-32b", 262_144), ("deepseek-v3", 70_272), ("qwen3.6-35b-a3b", 20_480)],
)
def test_bytes_of_a_cached_token(name: str, kv_bytes: int) -> None:
    assert llm(name).kv_token_bytes() == kv_bytes


def _attention(width: int, heads: int, kv_heads: int, head: int) -> int:
    return width * head * (heads + 2 * kv_heads) + heads * head * width


def _dense(layers: int, width: int, heads: int, kv_heads: int, head: int, inner: int, words: int, **more: int) -> tuple[float, float]:
    """Weights of a dense model from its published configuration, and those of one table."""
    each = _attention(width, heads, kv_heads, head) + 3 * width * inner + 2 * width + more.get("others", 0)
    return layers * each + width + words * width * more.get("tables", 2), words * width


CONFIGURATIONS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "llama-2-7b": ((32, 4096, 32, 32, 128, 11008, 32000), {}),
    "llama-2-70b": ((80, 8192, 64, 8, 128, 28672, 32000), {}),
    "llama-3-8b": ((32, 4096, 32, 8, 128, 14336, 128256), {}),
    "llama-3-70b": ((80, 8192, 64, 8, 128, 28672, 128256), {}),
    "llama-3.1-405b": ((126, 16384, 128, 8, 128, 53248, 128256), {}),
    "codellama-34b": ((48, 8192, 64, 8, 128, 22016, 32000), {}),
    "mistral-7b": ((32, 4096, 32, 8, 128, 14336, 32768), {}),
    "qwen2.5-7b": ((28, 3584, 28, 4, 128, 18944, 152064), {"others": (28 + 2 * 4) * 128}),  # biases
    "qwen3-8b": ((36, 4096, 32, 8, 128, 12288, 151936), {"others": 2 * 128}),  # norms of query and key
    "qwen3-32b": ((64, 5120, 64, 8, 128, 25600, 151936), {"others": 2 * 128}),
    "gemma-3-27b": ((62, 5376, 32, 16, 128, 21504, 262208), {"others": 2 * 5376 + 2 * 128, "tables": 1}),
}


@pytest.mark.parametrize("name", list(CONFIGURATIONS))
def test_dense_models_counted_from_their_configuration(name: str) -> None:
    sizes, more = CONFIGURATIONS[name]
    total, table = _dense(*sizes, **more)  # pyright: ignore[reportCallIssue]
    row = llm(name)
    assert row.parameters == pytest.approx(total, rel=2e-4)
    assert row.active_parameters == row.parameters
    assert row.output_parameters == pytest.approx(table, rel=5e-3)
    assert row.input_table_parameters == (row.output_parameters if more.get("tables", 2) == 2 else 0)
    assert (row.heads, row.kv_heads) == sizes[2:4]
    assert row.cache_elements_per_layer == 2 * sizes[3] * sizes[4]
    assert row.pair_flops_per_head == 4 * sizes[4]


EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral-8x7b": {"size": (32, 4096, 32, 8, 128), "inner": 14336, "experts": (8, 2), "words": 32000},
    "qwen3-30b-a3b": {"size": (48, 2048, 32, 4, 128), "inner": 768, "experts": (128, 8), "words": 151936},
    "qwen3-235b-a22b": {"size": (94, 4096, 64, 4, 128), "inner": 1536, "experts": (128, 8), "words": 151936},
}


@pytest.mark.parametrize("name", list(EXPERTS))
def test_mixtures_of_experts_counted_from_their_configuration(name: str) -> None:
    c, row = EXPERTS[name], llm(name)
    layers, width, heads, kv_heads, head = c["size"]
    every, chosen = c["experts"]
    shared = _attention(width, heads, kv_heads, head) + width * every
    for held, found in ((every, row.parameters), (chosen, row.active_parameters)):
        assert found == pytest.approx(layers * (shared + held * 3 * width * c["inner"]) + 2 * width * c["words"], rel=1e-3)


def test_latent_attention_counted_from_its_configuration() -> None:
    width, heads, layers, dense, words = 7168, 128, 61, 3, 129280
    attention = width * 1536 + 1536 * heads * 192 + width * 576 + 512 * heads * 256 + heads * 128 * width
    expert = 3 * width * 2048
    for held, found in ((256, llm("deepseek-v3").parameters), (8, llm("deepseek-v3").active_parameters)):
        rest = dense * 3 * width * 18432 + (layers - dense) * ((held + 1) * expert + 256 * width) + 2 * width * words
        assert found == pytest.approx(layers * attention + rest, rel=1e-4)
