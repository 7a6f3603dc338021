"""Models of a few thousand weights, made on the spot: tokenizers, a Llama for transformers, a GGUF file."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CORPUS = ["the cat sat on the mat, the dog did not", "wörld 😀 日本語 é", "one two three four"] * 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HIDDEN, INTERMEDIATE, N_HEADS, N_KV_HEADS, N_LAYERS = 32, 64, 4, 2, 2


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with all 256 bytes, some merges, three special tokens and one added plain token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("⟦tool⟧", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=SPECIALS[0],
        bos_token=SPECIALS[1],
        eos_token=SPECIALS[2],
        pad_token=SPECIALS[2],
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    )


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in the manner of SentencePiece: spaces as U+2581, unknown signs as <0xNN> tokens."""
    words = ["▁the", "▁cat", "▁", "s", "a", "t", "▁é"]
    tokens = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


def llama_config(vocab_size: int) -> LlamaConfig:
    """Two small layers with grouped queries."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV_HEADS,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
    )


def save_llama(folder: Path, seed: int = 0) -> Path:
    """A random Llama with its tokenizer in transformers' format."""
    tokenizer = byte_level_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama_config(len(tokenizer)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(path: Path, seed: int = 0) -> Path:
    """A random Llama as a GGUF file of float32 tensors, with the byte-level tokenizer in its metadata."""
    tokenizer = byte_level_tokenizer()
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = byte_level_merges(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(N_LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // N_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in SPECIALS else 1 for token, _ in vocabulary])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    random = np.random.default_rng(seed)
    for name, shape in gguf_shapes(len(vocabulary)).items():
        ones = name.endswith("norm.weight")
        values = np.ones(shape) if ones else random.normal(0, 0.05, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_shapes(n_tokens: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama's tensors in GGUF."""
    head_dim = HIDDEN // N_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_tokens, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for i in range(N_LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k.weight": (N_KV_HEADS * head_dim, HIDDEN),
            f"blk.{i}.attn_v.weight": (N_KV_HEADS * head_dim, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes


def byte_level_merges(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The tokenizer's merges as GGUF writes them: both sides with a space between."""
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]


def write_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A pure-Python wheel that holds ``members``, good enough for pip to download."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = {
        **{f"{name}/{member}": data for member, data in members.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(member, data)
    return path


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()
