"""Language models by name, with the sizes that a step's duration depends on."""

from __future__ import annotations

from typing import NamedTuple

from headway.identification.hardware.devices import Device, nearest, plain


class Llm(NamedTuple):
    """One language model; build one by hand for a model that `LLMS` lacks.

    Args:
        name: the key of `LLMS`.
        parameters: all of them.
        active_parameters: those that one token's computation touches, input table and output layer included; all of them
            for a dense model.
        input_table_parameters: of the input embedding, of which a token reads one row; 0 where the output layer is the
            same table.
        output_parameters: of the output layer, which is computed for tokens that are sampled, not for every prompt token.
        cache_layers: layers that read the cache of the whole context; those of a short window or a running state do not.
        heads: attention heads.
        kv_heads: heads of the cache; 1 for a latent cache, which is not divided among devices.
        cache_elements_per_layer: numbers that a token leaves in the cache of one such layer.
        pair_flops_per_head: operations for one query and one key in one head of one layer.
        weight_bytes: bytes of one parameter as published [bytes].
        aliases: other names.
    """

    name: str
    parameters: float
    active_parameters: float
    input_table_parameters: float
    output_parameters: float
    cache_layers: int
    heads: int
    kv_heads: int
    cache_elements_per_layer: int
    pair_flops_per_head: float
    weight_bytes: float = 2.0
    aliases: tuple[str, ...] = ()

    def kv_token_bytes(self, kv_bytes_per_element: float = 2.0) -> float:
        """Cache that one token of context makes a step read, over all devices.

        Args:
            kv_bytes_per_element: 2 for 16-bit, 1 for 8-bit.

        Returns:
            Size [bytes].
        """
        return self.cache_layers * self.cache_elements_per_layer * kv_bytes_per_element

    def prompt_token_flops(self) -> float:
        """Operations of the matrix products for one prompt token, without attention.

        Returns:
            Multiplications and additions.
        """
        return 2.0 * (self.active_parameters - self.input_table_parameters - self.output_parameters)

    def pair_flops(self) -> float:
        """Operations of attention for one pair of query and key, over all layers.

        Returns:
            Multiplications and additions.
        """
        return self.cache_layers * self.heads * self.pair_flops_per_head

    def read_parameters(self) -> float:
        """Parameters that even the smallest step reads.

        Returns:
            Their number; a larger step of a mixture of experts reads more.
        """
        return self.active_parameters - self.input_table_parameters


def _row(
    name: str, billion: float, active: float, table: float, layers: int, heads: int, kv_heads: int, head_dim: int, *aliases: str
) -> Llm:
    """Grouped-query attention, an output layer of its own of the input table's size, 16-bit weights."""
    sizes = (billion * 1e9, active * 1e9, table * 1e9, table * 1e9)
    return Llm(name, *sizes, layers, heads, kv_heads, 2 * kv_heads * head_dim, 4.0 * head_dim, 2.0, aliases)


# Counted from the published configurations (layers, widths, heads, vocabulary); tests/test_devices.py counts them again.
_ROWS = (
    _row("llama-2-7b", 6.738, 6.738, 0.131, 32, 32, 32, 128, "llama2-7b", "llama-2-7b-chat"),
    _row("llama-2-70b", 68.977, 68.977, 0.262, 80, 64, 8, 128, "llama2-70b", "llama-2-70b-chat"),
    _row("llama-3-8b", 8.030, 8.030, 0.525, 32, 32, 8, 128, "llama-3.1-8b", "llama3-8b", "llama-3.1-8b-instruct"),
    _row("llama-3-70b", 70.554, 70.554, 1.051, 80, 64, 8, 128, "llama-3.1-70b", "llama-3.3-70b", "llama3-70b"),
    _row("llama-3.1-405b", 405.853, 405.853, 2.101, 126, 128, 8, 128, "llama3-405b"),
    _row("codellama-34b", 33.744, 33.744, 0.262, 48, 64, 8, 128, "code-llama-34b"),
    _row("mistral-7b", 7.248, 7.248, 0.134, 32, 32, 8, 128, "mistral-7b-v0.3", "mistral-7b-instruct"),
    _row("mixtral-8x7b", 46.703, 12.880, 0.131, 32, 32, 8, 128),
    _row("qwen2.5-7b", 7.616, 7.616, 0.545, 28, 28, 4, 128),
    _row("qwen3-8b", 8.191, 8.191, 0.622, 36, 32, 8, 128),
    _row("qwen3-32b", 32.762, 32.762, 0.778, 64, 64, 8, 128),
    _row("qwen3-30b-a3b", 30.532, 3.353, 0.311, 48, 32, 4, 128),
    _row("qwen3-235b-a22b", 235.094, 22.191, 0.622, 94, 64, 4, 128),
    # 10 of 40 layers attend; the others keep a state of fixed size. Language part alone.
    _row("qwen3.6-35b-a3b", 34.661, 3.455, 0.509, 10, 16, 2, 256, "qwen3.5-35b-a3b"),
    # Every second layer of gpt-oss sees a window of 128 tokens, five of six of Gemma 3 one of 1024: they are left out.
    # The weights of gpt-oss are published in 4 bits, the rest of them in 16: so many bytes a parameter on average.
    _row("gpt-oss-20b", 20.915, 4.187, 0.579, 12, 64, 8, 64)._replace(weight_bytes=0.66),
    _row("gpt-oss-120b", 116.829, 5.712, 0.579, 18, 64, 8, 64)._replace(weight_bytes=0.56),
    # One table serves as input and output: it is read in every step.
    _row("gemma-3-27b", 27.009, 27.009, 1.410, 10, 32, 16, 128, "gemma3-27b")._replace(input_table_parameters=0.0),
    # Latent attention: 512 + 64 numbers a layer for all heads; a head's key has 192 numbers, its value 128. FP8 weights.
    Llm("deepseek-v3", 671.026e9, 37.552e9, 0.927e9, 0.927e9, 61, 128, 1, 576, 640.0, 1.0, ("deepseek-r1", "deepseek-v3.1")),
)

LLMS: dict[str, Llm] = {row.name: row for row in _ROWS}
"""Language models by name; a few aliases of each are understood as well."""


def llm(name: str) -> Llm:
    """Find a language model.

    Args:
        name: a key of `LLMS` or an alias; case and an owner before a slash do not matter.

    Returns:
        Its sizes.

    Raises:
        ValueError: no such model; the message gives the nearest names. Nothing is taken in its place.

    Example:
        >>> llm("Qwen/Qwen3-32B").kv_token_bytes()
        262144.0
    """
    known = {plain(n): row for row in _ROWS for n in (row.name, *row.aliases)}
    return known[nearest(name.rsplit("/", 1)[-1], known, "llm")]


def check_memory(llm: Llm, device: Device, tp: int = 1, weight_bytes: float | None = None) -> None:
    """Refuse weights that the devices cannot hold, before anything is computed with them.

    Args:
        llm: the model.
        device: one of the accelerators.
        tp: accelerators over which the weights are divided, at least 1.
        weight_bytes: of one parameter; None as published [bytes].

    Raises:
        ValueError: tp below 1, or weights larger than the memory; the message names both, and how many devices would do.
    """
    if tp < 1:
        raise ValueError(f"tp must be at least 1, got {tp}; it is the number of devices that share the weights")
    each = weight_bytes if weight_bytes is not None else llm.weight_bytes
    weights = llm.parameters * each
    if weights / tp > device.memory_bytes:
        least = int(-(-weights // device.memory_bytes))
        raise ValueError(
            f"the weights of {llm.name} take {weights / 1e9:.0f} GB at {each:g} bytes a parameter, {weights / tp / 1e9:.0f} GB on each of {tp} "
            f"device(s); a {device.name} holds {device.memory_bytes / 1e9:.0f} GB; it takes at least {least} of them, or smaller weights"
        )
