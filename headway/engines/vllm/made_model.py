"""A Llama with random weights and a tokenizer of its own: something to serve where no model hub can be reached."""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

from headway.experiments.whole_files import write_json, write_whole

VOCAB = 16_384
"""Tokens of the vocabulary, the special ones included."""
HEAD_DIM = 64
"""Width of an attention head; every kernel has it."""
ASPECT = 64
"""Width over depth that is aimed at, as in the Llamas of the same size."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SIZES = {"K": 1e3, "M": 1e6, "B": 1e9}
LEAST, MOST = 4e6, 80e9
"""Parameters that can be asked for: below, the vocabulary alone is larger; above, no single machine serves it."""
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Shape(NamedTuple):
    """Sizes of a Llama.

    Args:
        layers: depth.
        hidden: width, a multiple of HEAD_DIM.
        heads: of the queries.
        kv_heads: of keys and values.
        inner: width of the feed-forward part.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int

    @property
    def parameters(self) -> int:
        """Weights, the embedding counted once because input and output share it."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * HEAD_DIM
        return VOCAB * self.hidden + self.layers * (attention + 3 * self.hidden * self.inner)


def size_given(text: str) -> float:
    """Number of parameters from a text.

    Args:
        text: such as "17M" or "1.5B".

    Returns:
        Parameters.

    Raises:
        ValueError: no size, or one outside what can be made.
    """
    unit = SIZES.get(text.strip()[-1:].upper())
    try:
        size = float(text.strip()[:-1]) * unit if unit else float(text)
    except ValueError:
        size = float("nan")
    if not LEAST <= size <= MOST:
        raise ValueError(f"--size must be between {LEAST / 1e6:.0f}M and {MOST / 1e9:.0f}B parameters, got {text!r}; write for example 17M")
    return size


def shape_of(parameters: float) -> Shape:
    """The Llama whose size is nearest to a number of parameters, among those of a usual form.

    Args:
        parameters: wanted.

    Returns:
        Its sizes. Of the shapes within 3 % of the best match the one whose width over depth is nearest to ASPECT.
    """
    shapes = []
    for heads, layers in product(range(2, 129), range(2, 97)):
        hidden = heads * HEAD_DIM
        inner = round(hidden * 8 / 3 / 64) * 64
        groups = max(k for k in range(1, max(heads // 3, 1) + 1) if heads % k == 0)
        shapes.append(Shape(layers, hidden, heads, groups, inner))
    off = [abs(s.parameters / parameters - 1) for s in shapes]
    least = min(off)
    near = [s for s, miss in zip(shapes, off, strict=True) if miss <= least + 0.03]
    return min(near, key=lambda s: max(s.hidden / s.layers / ASPECT, ASPECT * s.layers / s.hidden))


def tokenizer() -> dict[str, Any]:
    """A byte-level BPE with every byte, and pairs of bytes as its merges: any text is encoded, and no text is needed to train it.

    Returns:
        The content of tokenizer.json.
    """
    alphabet = byte_letters()
    letters = [alphabet[b] for b in (*range(97, 123), 32, *range(65, 91), *range(48, 58))]
    letters += [c for c in alphabet.values() if c not in letters]
    room = VOCAB - len(SPECIAL) - len(alphabet)
    # the first of a square shell by shell: pairs of common letters come before any pair of rare ones
    shells = (pair for n in range(len(letters)) for pair in ((letters[i], letters[j]) for i, j in _shell(n)))
    merges = list(islice(shells, room))
    tokens = [*SPECIAL, *alphabet.values(), *(a + b for a, b in merges)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [
        {"id": k, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for k, t in enumerate(SPECIAL)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: k for k, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }


def _shell(n: int) -> list[tuple[int, int]]:
    """Cells of a square that lie in its n-th row or column and in none before."""
    return [*((n, j) for j in range(n)), *((i, n) for i in range(n)), (n, n)]


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it is printable, else one from 256 on.

    Returns:
        Letter by byte, printable ones first.

    Source:
        The byte-level BPE of GPT-2; every tokenizer library reads it.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + k) for k, b in enumerate(others)}


def make_model(out: Path, size: str, *, max_len: int = 8192) -> dict[str, Any]:
    """Write the folder of a Llama with random weights: configuration and tokenizer, no weights, which a server draws itself.

    Args:
        out: folder to make; a model of ours that is there is written over.
        size: parameters, such as "17M".
        max_len: longest prompt and output together [tokens].

    Returns:
        {"folder", "parameters", "layers", "hidden", "heads", "kv_heads", "vocab", "max_len", "files"}.

    Raises:
        ValueError: no size, or a folder that holds something else.
    """
    shape = shape_of(size_given(size))
    files = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    others = sorted({p.name for p in out.iterdir()} - set(files)) if out.is_dir() else []
    if others:
        raise ValueError(f"--out {out} holds {', '.join(others[:3])}{' ...' * (len(others) > 3)}; name a folder that is new or empty")
    write_json(out / "config.json", _config(shape, max_len))
    write_json(out / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    write_whole(out / "tokenizer.json", json.dumps(tokenizer()).encode())
    names = dict.fromkeys(("bos_token", "eos_token", "pad_token"), SPECIAL[0])
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "model_max_length": max_len, "chat_template": CHAT}
    write_json(out / "tokenizer_config.json", about)
    told = {"layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "kv_heads": shape.kv_heads}
    return {"folder": str(out), "parameters": shape.parameters, **told, "vocab": VOCAB, "max_len": max_len, "files": list(files)}


def _config(shape: Shape, max_len: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "initializer_range": 0.02,
    }
