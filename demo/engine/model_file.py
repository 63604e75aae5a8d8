"""A language model small enough to write by hand: random weights, real format.

What it says means nothing. What the engine does with it (tokens, batches, KV cache, slots) is real.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

NAME = "tiny"
CONTEXT_LENGTH = 4096
WIDTH = 64
LAYERS = 2
HEADS = 4
FEED_FORWARD = 128
WEIGHT_SCALE = 0.1
WORD_SCALE = 8
"""How much louder words speak than bytes, so that answers are words and not mojibake."""

WORDS = (
    *("a", "and", "are", "as", "at", "be", "by", "can", "each", "early", "for", "from", "green", "has", "he"),
    *(
        "her",
        "him",
        "his",
        "in",
        "is",
        "it",
        "its",
        "late",
        "light",
        "many",
        "more",
        "most",
        "new",
        "no",
        "not",
    ),
    *("of", "on", "one", "or", "other", "out", "over", "quiet", "rain", "river", "she", "slow", "so", "some"),
    *("stone", "that", "the", "their", "then", "there", "they", "this", "to", "two", "under", "was", "water"),
    *("were", "what", "when", "which", "who", "will", "wind", "with", "word", "you"),
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def vocabulary() -> tuple[list[bytes], list[float], list[gguf.TokenType]]:
    """SentencePiece tokens, scores and types: three specials, every byte, and some words.

    Prompts are split into bytes (no merge leads to a word), so that a prompt has one token a byte and one
    for its beginning.
    """
    specials = [b"<unk>", b"<s>", b"</s>"]
    single_bytes = [f"<0x{value:02X}>".encode() for value in range(256)]
    words = [f"\u2581{word}".encode() for word in WORDS]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * len(single_bytes) + [gguf.TokenType.NORMAL] * len(words)
    tokens = specials + single_bytes + words
    return tokens, [0.0] * (len(tokens) - len(words)) + [-1.0] * len(words), types


def write(path: Path, seed: int = 7) -> None:
    """Write the model as GGUF (0.5 MB); the same seed gives the same bytes."""
    tokens, scores, types = vocabulary()
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name(NAME)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(value=True)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in weights(len(tokens), np.random.default_rng(seed)):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def weights(vocabulary_size: int, random: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    """Every tensor of a two-layer Llama by its GGUF name."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * WEIGHT_SCALE).astype(np.float32)

    def ones() -> np.ndarray:
        return np.ones(WIDTH, np.float32)

    output = matrix(vocabulary_size, WIDTH)
    output[-len(WORDS) :] *= WORD_SCALE
    tensors = [
        ("token_embd.weight", matrix(vocabulary_size, WIDTH)),
        ("output_norm.weight", ones()),
        ("output.weight", output),
    ]
    for layer in range(LAYERS):
        block = {
            "attn_norm": ones(),
            "attn_q": matrix(WIDTH, WIDTH),
            "attn_k": matrix(WIDTH, WIDTH),
            "attn_v": matrix(WIDTH, WIDTH),
            "attn_output": matrix(WIDTH, WIDTH),
            "ffn_norm": ones(),
            "ffn_gate": matrix(FEED_FORWARD, WIDTH),
            "ffn_up": matrix(FEED_FORWARD, WIDTH),
            "ffn_down": matrix(WIDTH, FEED_FORWARD),
        }
        tensors += [(f"blk.{layer}.{name}.weight", tensor) for name, tensor in block.items()]
    return tensors


def ensure(directory: Path) -> Path:
    """The model in this directory, written first where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{NAME}.gguf"
    if not os.access(path, os.R_OK):
        write(path)
    return path
