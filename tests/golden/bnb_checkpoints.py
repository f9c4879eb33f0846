"""Checkpoints with bitsandbytes 4-bit weights, written tensor by tensor as transformers' save_pretrained writes them:
data/bnb/."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.nn import Linear4bit
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import checkpoints
from checkpoints import Family, base_config, small_config
from common import write_json
from quant_tables import decode_by_formula

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass
class Quantised:
    family: Family
    quant_type: str = "nf4"
    block_size: int = 64
    nested: bool = False
    dense: tuple[str, ...] = ("lm_head",)  # modules left in 16 bit: names or beginnings of names
    skip_modules: object = ("lm_head",)  # what the config says: list, None, "null", or "absent"
    storage: torch.dtype = torch.uint8


def variants() -> list[Quantised]:
    def small(name: str, why: str, **settings) -> Family:
        return Family(name, small_config("qwen2", num_hidden_layers=1, **settings), why)

    def untied(name: str, why: str, **settings) -> Family:
        return Family(name, small_config("llama", tie_word_embeddings=False, **settings), why)

    skipped = ("lm_head", "model.layers.1.mlp")
    odd = base_config("llama", num_hidden_layers=1, intermediate_size=172, tie_word_embeddings=True)
    return [
        Quantised(
            Family(
                "qwen2_nf4_nested",
                base_config("qwen2", tie_word_embeddings=True, use_sliding_window=False, sliding_window=32768),
                "the usual QLoRA base: Qwen2 of the shape of models/qwen2 in NF4, block 64, double quantisation; base of adapters",
                seed=10,
            ),
            nested=True,
            skip_modules=None,
        ),
        Quantised(
            small("qwen2_fp4", "FP4, block 64, list of skipped modules null"), quant_type="fp4", skip_modules=None
        ),
        Quantised(small("qwen2_nf4_block32", "NF4, block 32, no list"), block_size=32, skip_modules="absent"),
        Quantised(
            small("qwen2_nf4_block128", "NF4, block 128, the list is the string null"),
            block_size=128,
            skip_modules="null",
        ),
        Quantised(
            small("qwen2_fp4_block256_nested", "FP4, block 256, double quantisation"),
            quant_type="fp4",
            block_size=256,
            nested=True,
        ),
        Quantised(
            small("qwen2_nf4_block512", "NF4, block 512 that does not divide k and v (24 x 32)", head_dim=24),
            block_size=512,
        ),
        Quantised(
            Family(
                "llama_nf4_block32_nested", odd, "344 blocks of 32 in an MLP matrix: two scales of the second level"
            ),
            block_size=32,
            nested=True,
        ),
        Quantised(
            untied("llama_nf4_skipped", "lm_head and model.layers.1.mlp dense, as the list says"),
            dense=skipped,
            skip_modules=skipped,
        ),
        Quantised(
            untied(
                "llama_nf4_list_wrong",
                "the list names model.layers.1.mlp, its tensors are 4-bit all the same; so is lm_head",
            ),
            dense=(),
            skip_modules=("model.layers.1.mlp",),
        ),
        Quantised(
            small("qwen2_nf4_bf16_storage", "the bytes of the codes stored as BF16 (quant_storage bfloat16)"),
            storage=torch.bfloat16,
        ),
    ]


def quantisation_config(variant: Quantised) -> dict:
    config = {
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": str(variant.storage).removeprefix("torch."),
        "bnb_4bit_quant_type": variant.quant_type,
        "bnb_4bit_use_double_quant": variant.nested,
        "llm_int8_enable_fp32_cpu_offload": False,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": variant.skip_modules,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": True,
        "load_in_8bit": False,
        "quant_method": "bitsandbytes",
    }
    if isinstance(variant.skip_modules, tuple):
        config["llm_int8_skip_modules"] = list(variant.skip_modules)
    return {key: value for key, value in config.items() if value != "absent"}


def is_quantised(name: str, variant: Quantised) -> bool:
    module = name.removesuffix(".weight")
    if not name.endswith(".weight") or module.split(".")[-1] not in PROJECTIONS + ("lm_head",):
        return False
    return not any(module == dense or module.startswith(dense + ".") for dense in variant.dense)


def quantise(tensors: dict, variant: Quantised) -> tuple[dict, dict]:
    """The tensors of the file, and the float32 weights they stand for: code * absmax in float32, no 16-bit rounding."""
    stored, weights = {}, {}
    for name, value in tensors.items():
        if not is_quantised(name, variant):
            stored[name], weights[name] = value, value.float()
            continue
        packed, state = bnb.quantize_4bit(
            value,
            blocksize=variant.block_size,
            quant_type=variant.quant_type,
            compress_statistics=variant.nested,
            quant_storage=variant.storage,
        )
        stored[name] = packed
        stored.update({f"{name}.{key}": part for key, part in state.as_dict(packed=True).items()})
        absmax = state.absmax
        if variant.nested:
            absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
        codes = packed.view(torch.uint8).view(-1).numpy()
        flat = decode_by_formula(codes, absmax.numpy(), state.code.numpy(), variant.block_size, value.numel())
        weights[name] = torch.from_numpy(flat).view(value.shape)
    return stored, weights


def float_model(config: dict, weights: dict):
    # The config's own dtype, bfloat16, would otherwise be the model's.
    model = AutoModelForCausalLM.from_config(
        checkpoints.as_config(config), attn_implementation="eager", dtype=torch.float32
    ).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{missing} {unexpected}")
    return model


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Codes stored as BF16 hold NaN patterns, which are unequal to themselves as numbers."""
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check_reading(directory: Path, variant: Quantised, stored: dict) -> None:
    """transformers must read the folder and hold exactly these codes and scales."""
    model = AutoModelForCausalLM.from_pretrained(directory, device_map="cpu", dtype=torch.bfloat16)
    for name, module in model.named_modules():
        if not isinstance(module, Linear4bit):
            continue
        held = {
            "": module.weight.data,
            **{f".{k}": v for k, v in module.weight.quant_state.as_dict(packed=True).items()},
        }
        for key, value in held.items():
            if not same_bytes(value, stored[f"{name}.weight{key}"]):
                raise ValueError(f"{variant.family.name}: transformers reads another {name}.weight{key}")


def check_writing(variant: Quantised, stored: dict) -> None:
    """Where transformers' own configuration can express the variant, its save_pretrained writes the same tensors."""
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=variant.quant_type,
        bnb_4bit_use_double_quant=variant.nested,
        bnb_4bit_quant_storage=variant.storage,
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.write_checkpoint(Path(folder) / "plain", variant.family, variant_tensors(variant))
        model = AutoModelForCausalLM.from_pretrained(
            Path(folder) / "plain", quantization_config=config, device_map="cpu", dtype=torch.bfloat16
        )
        model.save_pretrained(Path(folder) / "saved")
        written = load_file(Path(folder) / "saved" / "model.safetensors")
    if written.keys() != stored.keys() or not all(same_bytes(written[name], stored[name]) for name in stored):
        raise ValueError(f"{variant.family.name}: transformers writes other tensors")


def variant_tensors(variant: Quantised) -> dict:
    family = variant.family
    return checkpoints.weights_of(family.config, checkpoints.DTYPES[family.dtype], family.seed)


def make_variant(out: Path, variant: Quantised) -> None:
    family = variant.family
    directory = out / "bnb" / family.name
    while True:
        stored, weights = quantise(variant_tensors(variant), variant)
        model = float_model(family.config, weights)
        arrays, prompts, telling = checkpoints.expected_of(model, family, only=("text", "forty"))
        if telling:
            break
        family.seed += 1
    directory.mkdir(parents=True, exist_ok=True)
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    write_json(directory / "config.json", {**family.config, "quantization_config": quantisation_config(variant)})
    if family.name == "qwen2_nf4_nested":
        checkpoints.write_tokenizer(directory, family.config["model_type"])
    if variant.skip_modules != "null" and family.name != "llama_nf4_list_wrong":  # transformers refuses these two
        check_reading(directory, variant, stored)
    if variant.block_size == 64 and variant.dense == ("lm_head",):
        check_writing(variant, stored)
    content = {
        "why": family.why,
        "seed": family.seed,
        "quant_type": variant.quant_type,
        "block_size": variant.block_size,
        "nested": variant.nested,
        "dense_modules": list(variant.dense),
        "prompts": prompts,
    }
    arrays.write(directory / "expected.json", content)


def make(out: Path) -> None:
    for variant in variants():
        make_variant(out, variant)
        print(f"bnb/{variant.family.name}", flush=True)
