"""Accelerators by name, with what their makers promise: memory, bandwidth, dense arithmetic and links.

Peaks, not what an engine reaches: a plant that needs more than a peak is wrong, one that needs 60 % of it is usual.
A bare name means the largest of its kind (h100: the SXM module, a100: that of 80 GB), which refuses least.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import NamedTuple

GIB, TERA = 2.0**30, 1e12


class Device(NamedTuple):
    """One accelerator, as an engine counts them.

    Args:
        name: the key of `DEVICES`.
        memory_bytes: of its own memory [bytes]. Makers print binary units without saying so: the larger reading, so that
            nothing that fits is called too large.
        bandwidth_bytes_per_s: of that memory [bytes/s].
        flops: dense, 16-bit operands with 32-bit sums [1/s].
        eight_bit_flops: dense, 8-bit operands (FP8, or int8 where there is no FP8) [1/s].
        link_bytes_per_s: to its peers in one machine, both directions added, as makers count it [bytes/s].
        aliases: other names.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops: float
    eight_bit_flops: float
    link_bytes_per_s: float
    aliases: tuple[str, ...] = ()


def _row(name: str, gib: float, tera_bytes: float, tera_flops: float, eight_bit: float, link_gb: float, *aliases: str) -> Device:
    return Device(name, gib * GIB, tera_bytes * TERA, tera_flops * TERA, eight_bit * TERA, link_gb * 1e9, aliases)


_ROWS = (
    # NVIDIA A100 data sheet (1758950-r4): figures with sparsity halved; no FP8, so int8. PCIe cards: the slot, no bridge.
    _row("a100-40gb-sxm", 40, 1.555, 312, 624, 600, "a100-40gb", "a100-sxm4-40gb"),
    _row("a100-40gb-pcie", 40, 1.555, 312, 624, 64, "a100-pcie-40gb"),
    _row("a100-80gb-sxm", 80, 2.039, 312, 624, 600, "a100", "a100-80gb", "a100-sxm", "a100-sxm4-80gb"),
    _row("a100-80gb-pcie", 80, 1.935, 312, 624, 64, "a100-pcie", "a100-pcie-80gb"),
    # NVIDIA H100 and H200 data sheets: sparse figures halved. H800 and H20: export variants of the same.
    _row("h100-sxm", 80, 3.35, 989.4, 1978.9, 900, "h100", "h100-80gb", "h100-sxm5", "h100-sxm-80gb", "h100-80gb-hbm3"),
    _row("h100-pcie", 80, 2.039, 756.5, 1513, 128, "h100-pcie-80gb"),
    _row("h100-nvl", 94, 3.938, 835.5, 1671, 600),
    _row("h800-sxm", 80, 3.35, 989.4, 1978.9, 400, "h800"),
    _row("h200-sxm", 141, 4.8, 989.4, 1978.9, 900, "h200", "h200-141gb"),
    _row("h20", 96, 4.0, 148, 296, 900, "h20-96gb", "h20-sxm"),
    # NVIDIA HGX B200 / B300 and GB200 / GB300 NVL72 data sheets: per device, sparse figures halved.
    _row("b200", 180, 8.0, 2250, 4500, 1800, "b200-sxm", "hgx-b200"),
    _row("gb200", 186, 8.0, 2500, 5000, 1800, "gb200-nvl72"),
    _row("b300", 270, 8.0, 2250, 4500, 1800, "b300-sxm", "hgx-b300", "b300-288gb"),
    _row("gb300", 279, 8.0, 2500, 5000, 1800, "gb300-nvl72"),
    # NVIDIA L4, L40S, A10G data sheets; Ada and RTX Blackwell architecture papers (dense, 32-bit sums).
    _row("l4", 24, 0.300, 121, 242, 64),
    _row("l40s", 48, 0.864, 362, 733, 64),
    _row("a10g", 24, 0.600, 70, 140, 64),
    _row("rtx-4090", 24, 1.008, 165.2, 660.6, 64, "geforce-rtx-4090", "4090"),
    _row("rtx-pro-6000", 96, 1.792, 503.8, 1007.6, 128, "rtxpro6000", "rtx-pro-6000-blackwell", "rtx-pro-6000-workstation"),
    _row("rtx-pro-6000-server", 96, 1.597, 503.8, 1007.6, 128, "rtx-pro-6000-blackwell-server"),
    # AMD Instinct data sheets. An MI250X shows itself to software as two devices of half the size each.
    _row("mi250x", 128, 3.277, 383, 383, 800),
    _row("mi250x-gcd", 64, 1.638, 191.5, 191.5, 400),
    _row("mi300x", 192, 5.3, 1307.4, 2614.9, 896),
    _row("mi325x", 256, 6.0, 1307.4, 2614.9, 896),
    _row("mi355x", 288, 8.0, 2516.6, 5033.2, 1075),
    # Intel Gaudi 3 paper (HL-325L); Google Cloud TPU pages (no FP8, so int8).
    _row("gaudi3", 128, 3.7, 1835, 1835, 1200, "gaudi-3", "hl-325l"),
    _row("tpu-v5e", 16, 0.819, 197, 393, 400, "v5e", "tpu-v5-lite"),
    _row("tpu-v6e", 32, 1.638, 918, 1836, 800, "v6e", "trillium"),
)

DEVICES: dict[str, Device] = {row.name: row for row in _ROWS}
"""Accelerators by name; a few aliases of each are understood as well."""


def device(name: str) -> Device:
    """Find an accelerator.

    Args:
        name: a key of `DEVICES` or an alias; case, blanks, underscores and the maker's name do not matter.

    Returns:
        Its figures.

    Raises:
        ValueError: no such accelerator; the message gives the nearest names. Nothing is taken in its place.

    Example:
        >>> device("NVIDIA H100").name
        'h100-sxm'
    """
    known = {plain(n): row for row in _ROWS for n in (row.name, *row.aliases)}
    return known[nearest(name, known, "device")]


def plain(name: str) -> str:
    """A name in the form in which names are compared.

    Args:
        name: as given.

    Returns:
        Lower case, parts joined by "-", without the maker.
    """
    parts = name.lower().replace("_", "-").replace(" ", "-").split("-")
    return "-".join(p for p in parts if p and p not in ("nvidia", "amd", "intel", "instinct"))


def nearest(name: str, known: Mapping[str, object], what: str) -> str:
    """The key that was meant.

    Args:
        name: as given.
        known: by plain name.
        what: of what it is the name, for the message.

    Returns:
        The name itself, plain.

    Raises:
        ValueError: it is not there; the message gives the nearest names.
    """
    wanted = plain(name)
    if wanted in known:
        return wanted
    close = difflib.get_close_matches(wanted, list(known), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    raise ValueError(f"unknown {what} {name!r}; {hint} Its numbers can also be given by hand ({what.capitalize()}(...))")
