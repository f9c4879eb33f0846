"""PEFT adapters on the tiny checkpoints, made and saved by PEFT, with the logits PEFT gives: data/adapters/."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

import bnb_checkpoints
import checkpoints
from common import Arrays, normal, rng_of, write_json

SEED = 40
PROMPT_TOKENS = 12
POSITIONS = [3, 11]
MIN_MOVE = 0.01  # every adapter moves the logits by at least this part of the largest
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
SOME = ["q_proj", "v_proj", "down_proj"]
NF4_BASES = {"qwen2": "qwen2_nf4_nested"}


@dataclass
class Adapter:
    base: str
    name: str
    why: str
    config: dict
    dtype: torch.dtype = torch.float32
    half: bool = False  # also logits with PEFT's scaling multiplied by 0.5
    nf4: bool = False  # also logits over the 4-bit base


def adapters() -> list[Adapter]:
    def lora(r: int, alpha: int, targets, **more) -> dict:
        return {"r": r, "lora_alpha": alpha, "target_modules": targets, **more}

    some = lora(4, 8, SOME)
    return [
        Adapter("qwen2", "some_r4", "r 4, alpha 8 on q, v, down; F32", some, half=True, nf4=True),
        Adapter("qwen2", "all_r16", "r 16, alpha 32 on all seven; BF16", lora(16, 32, ALL), torch.bfloat16, True, True),
        Adapter("qwen2", "all_linear_r2", 'target "all-linear"; F16', lora(2, 4, "all-linear"), torch.float16),
        Adapter(
            "qwen2",
            "rslora",
            "rsLoRA: scale 16 / sqrt(16) = 4",
            lora(16, 16, ["k_proj", "up_proj"], use_rslora=True),
            torch.bfloat16,
        ),
        Adapter(
            "qwen2",
            "patterns",
            "rank_pattern and alpha_pattern: q 8/4 = 2, down 8/8 = 1",
            lora(4, 8, ["q_proj", "down_proj"], rank_pattern={"down_proj": 8}, alpha_pattern={"down_proj": 8}),
        ),
        Adapter(
            "qwen2",
            "patterns_first_wins",
            "several alpha keys match one q_proj: the first in file order wins, not the longest; one key is a regex",
            lora(
                4,
                4,
                ["q_proj", "o_proj"],
                alpha_pattern={
                    r".*\.0\.self_attn\.o_proj": 2,
                    "layers.1.self_attn.q_proj": 16,
                    "q_proj": 8,
                    "self_attn.q_proj": 32,
                },
            ),
        ),
        Adapter(
            "qwen2", "layers_1", "layers_to_transform [1]", lora(4, 8, SOME, layers_to_transform=[1]), torch.bfloat16
        ),
        Adapter(
            "qwen2",
            "layers_0_pattern",
            "layers_to_transform 0 (a number) with layers_pattern",
            lora(4, 8, SOME, layers_to_transform=0, layers_pattern="layers"),
            torch.float16,
        ),
        Adapter(
            "qwen2",
            "regex",
            "target_modules is a regex",
            lora(4, 8, r".*\.1\.(self_attn\.(q|k)|mlp\.up)_proj"),
            torch.float16,
        ),
        Adapter(
            "qwen2",
            "exclude",
            "exclude_modules takes layer 0's v away",
            lora(4, 8, ["q_proj", "v_proj"], exclude_modules=["layers.0.self_attn.v_proj"]),
        ),
        Adapter(
            "qwen2",
            "dora",
            "DoRA on q, v, o, down",
            lora(4, 8, ["q_proj", "v_proj", "o_proj", "down_proj"], use_dora=True),
            torch.bfloat16,
            half=True,
            nf4=True,
        ),
        Adapter(
            "qwen2",
            "bias_lora_only",
            "trained biases of the targeted modules",
            lora(4, 8, SOME, bias="lora_only"),
            torch.bfloat16,
        ),
        Adapter(
            "qwen2",
            "bias_all",
            "trained biases of every module, k among them",
            lora(4, 8, SOME, bias="all"),
            torch.float16,
        ),
        Adapter(
            "qwen2",
            "lora_bias",
            "lora_bias: a bias on B, scaled with it",
            lora(4, 8, SOME, lora_bias=True),
            torch.float16,
            half=True,
        ),
        Adapter(
            "qwen2_new_spelling",
            "saved_head",
            "modules_to_save lm_head over a tied base",
            {**some, "modules_to_save": ["lm_head"]},
            torch.bfloat16,
        ),
        Adapter(
            "qwen2_new_spelling",
            "saved_embedding",
            "modules_to_save embed_tokens over a tied base",
            {**some, "modules_to_save": ["embed_tokens"]},
            torch.bfloat16,
        ),
        Adapter(
            "qwen2_new_spelling",
            "lora_embedding",
            "LoRA on embed_tokens over a tied base",
            lora(4, 8, ["embed_tokens", "q_proj"]),
            torch.bfloat16,
        ),
        Adapter(
            "qwen2_new_spelling",
            "lora_head",
            "LoRA on lm_head over a tied base",
            lora(4, 8, ["lm_head", "q_proj"]),
            torch.bfloat16,
        ),
        Adapter("llama_gqa", "some_r4", "r 4, alpha 8 on q, v, down; BF16", some, torch.bfloat16, half=True),
        Adapter("llama_gqa", "all_r8", "r 8, alpha 16 on all seven; F16", lora(8, 16, ALL), torch.float16, half=True),
        Adapter("llama_gqa", "dora_all", "DoRA on all seven; F16", lora(2, 4, ALL, use_dora=True), torch.float16),
        Adapter(
            "llama_sharded",
            "lora_embedding_head",
            "LoRA on embed_tokens and lm_head, untied",
            lora(4, 8, ["embed_tokens", "lm_head"]),
            torch.bfloat16,
            half=True,
        ),
        Adapter(
            "llama_sharded",
            "saved_both",
            "modules_to_save embed_tokens and lm_head, untied",
            {**some, "modules_to_save": ["embed_tokens", "lm_head"]},
            torch.bfloat16,
        ),
        Adapter(
            "llama_gqa",
            "lora_bias_rslora",
            "lora_bias with rsLoRA",
            lora(4, 8, SOME, lora_bias=True, use_rslora=True),
            torch.bfloat16,
        ),
        Adapter(
            "llama_12_layers",
            "layer_1_not_10",
            "alpha_pattern {layers.1.self_attn.q_proj: 32}: layer 1 only, not 10, not 11",
            lora(2, 2, ["q_proj"], alpha_pattern={"layers.1.self_attn.q_proj": 32}),
        ),
    ]


def train(model: PeftModel, dtype: torch.dtype) -> None:
    """Random values, none negligible, for all that training would change; rounded to the file's type."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not value.requires_grad:
                continue
            if "lora_magnitude_vector" in name:
                new = value * normal(SEED, name, value.shape, 0.2, mean=1.0)
            elif "lora_" in name and not name.endswith("bias"):
                new = normal(SEED, name, value.shape, 0.1)
            else:  # whole matrices and biases
                new = value + normal(SEED, name, value.shape, 0.3 if value.dim() == 1 else 0.03)
            value.copy_(new.to(dtype))


def save(model: PeftModel, directory: Path, adapter: Adapter) -> None:
    """save_pretrained, then what makes the folder the same everywhere: types, order of lists, name of the base."""
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    tensors = load_file(directory / "adapter_model.safetensors")
    tensors = {name: tensors[name].to(adapter.dtype).contiguous() for name in sorted(tensors)}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    for key in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    config["base_model_name_or_path"] = adapter.base
    write_json(directory / "adapter_config.json", config)


def scales_of(model: PeftModel) -> dict[str, dict]:
    """Rank and scale of every module that PEFT wrapped, by its name in the base."""
    return {
        name.removeprefix("base_model.model."): {"r": module.r["default"], "scale": module.scaling["default"]}
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer) and "default" in module.scaling
    }


def set_scale(model: PeftModel, factor: float) -> None:
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.scaling["default"] *= factor


def nf4_base(out: Path, adapter: Adapter):
    """The 4-bit base as a float32 model: decoded weights, float32 maths, nothing merged."""
    name = NF4_BASES[adapter.base]
    variant = next(variant for variant in bnb_checkpoints.variants() if variant.family.name == name)
    variant.family.seed = json.loads((out / "bnb" / name / "expected.json").read_text(encoding="utf-8"))["seed"]
    _, weights = bnb_checkpoints.quantise(bnb_checkpoints.variant_tensors(variant), variant)
    return bnb_checkpoints.float_model(variant.family.config, weights)


def make_adapter(out: Path, adapter: Adapter) -> None:
    base_directory = out / "models" / adapter.base
    directory = out / "adapters" / adapter.base / adapter.name
    ids = [int(value) for value in rng_of(SEED, adapter.base).integers(3, 317, PROMPT_TOKENS)]
    arrays = Arrays()

    def logits(model) -> torch.Tensor:
        return checkpoints.logits_of(model.eval(), ids)[POSITIONS]

    base_logits = logits(checkpoints.load(base_directory))
    torch.manual_seed(SEED)
    model = get_peft_model(checkpoints.load(base_directory), LoraConfig(task_type="CAUSAL_LM", **adapter.config))
    train(model, adapter.dtype)
    save(model, directory, adapter)

    loaded = PeftModel.from_pretrained(checkpoints.load(base_directory), directory)
    result = logits(loaded)
    if checkpoints.relative_distance(result, logits(model)) > 1e-6:
        raise ValueError(f"{directory}: logits change when PEFT loads what it saved")
    moved = checkpoints.relative_distance(result, base_logits)
    if moved < MIN_MOVE:
        raise ValueError(f"{directory}: the adapter moves the logits by {moved} only")
    arrays.add("logits", result)
    arrays.add("base_logits", base_logits)
    content = {
        "why": adapter.why,
        "seed": SEED,
        "base": f"models/{adapter.base}",
        "ids": ids,
        "positions": POSITIONS,
        "moves_logits_by": round(moved, 4),
        "modules": scales_of(loaded),
    }
    if adapter.half:
        set_scale(loaded, 0.5)
        arrays.add("half_scale_logits", logits(loaded))
    if adapter.nf4:
        content["nf4_base"] = f"bnb/{NF4_BASES[adapter.base]}"
        arrays.add("nf4_base_logits", logits(nf4_base(out, adapter)))
        arrays.add("nf4_logits", logits(PeftModel.from_pretrained(nf4_base(out, adapter), directory)))
    arrays.write(directory / "expected.json", content)


def make(out: Path) -> None:
    """Needs models/ and bnb/ in the same folder."""
    warnings.filterwarnings("ignore")
    for adapter in adapters():
        make_adapter(out, adapter)
        print(f"adapters/{adapter.base}/{adapter.name}", flush=True)
