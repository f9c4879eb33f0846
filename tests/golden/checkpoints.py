"""Tiny random checkpoints in the Hugging Face layout with their float32 logits: data/models/."""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

import tiny_tokenizers
from common import Arrays, normal, rng_of, write_json

logging.disable_progress_bar()

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
GREEDY_TOKENS = 16
MIN_GREEDY_GAP = 1.5e-3  # between best and second logit at each greedy step: an engine within 2e-4 picks the same ids
MIN_GREEDY_KINDS = 2  # different ids in each continuation: a constant one proves little


@dataclass
class Family:
    name: str
    config: dict
    why: str
    dtype: str = "bfloat16"
    seed: int = 1
    shards: int = 1
    long_tokens: int = 96
    all_positions: bool = False  # of the 40-token prompt; else its last 2
    greedy: bool = True
    generation_config: dict | None = None
    same_logits_as: str | None = None  # an earlier family: same weights, must be bit-equal
    unlike: dict[str, dict] = field(default_factory=dict)  # name -> config changes that must move the logits


BYTE_LEVEL = {"qwen2", "qwen3", "qwen3_5_text"}


def base_config(model_type: str, **changes) -> dict:
    """Fixture "tiny" of the case list: hidden 64, 2 layers, 4 heads, 2 KV heads, MLP 128, vocabulary 320."""
    architecture = {
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "qwen3_5_text": "Qwen3_5",
        "llama": "Llama",
        "mistral": "Mistral",
    }[model_type]
    byte_level = model_type in BYTE_LEVEL
    config = {
        "architectures": [architecture + "ForCausalLM"],
        "model_type": model_type,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 320,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6 if byte_level else 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 317 if byte_level else 1,
        "eos_token_id": 319 if byte_level else 2,
        "torch_dtype": "bfloat16",
        **changes,
    }
    return {key: value for key, value in config.items() if value != "absent"}


def small_config(model_type: str, **changes) -> dict:
    """Half the width, tied: for the variants that differ in one setting."""
    small = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "tie_word_embeddings": True,
    }
    return base_config(model_type, **{**small, **changes})


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
NEW = {"rope_theta": "absent", "torch_dtype": "absent", "dtype": "bfloat16"}  # spelling of transformers 5
PLAIN_ROPE = {"plain rope": {"rope_scaling": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}}
HALF_ROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]}
NO_WINDOW = {
    "no window": {"sliding_window": None, "use_sliding_window": False, "layer_types": ["full_attention"] * 2},
}


def families() -> list[Family]:
    tiny, small = base_config, small_config
    window = {"use_sliding_window": True, "sliding_window": 8}
    yarn_new = {**YARN, "rope_theta": 10000.0}
    return [
        Family(
            "qwen2",
            tiny("qwen2", tie_word_embeddings=True, use_sliding_window=False, sliding_window=32768),
            "Qwen2: tied head, q/k/v bias that no config key mentions; base of adapters and of 4-bit checkpoints",
            all_positions=True,
            generation_config={"bos_token_id": 317, "eos_token_id": [319, 317], "do_sample": False},
        ),
        Family(
            "llama_gqa",
            tiny("llama", attention_bias=False, mlp_bias=False),
            "Llama: untied head, grouped queries, no biases; base of adapters",
        ),
        Family(
            "qwen3",
            small("qwen3", head_dim=32, attention_bias=False),
            "Qwen3: q/k norm, head size 32 where hidden/heads is 16",
            generation_config={"eos_token_id": [319, 317], "do_sample": True, "temperature": 0.6, "top_k": 20},
        ),
        Family(
            "mistral_sliding",
            small("mistral", sliding_window=8, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
            "Mistral: window 8 in every layer",
            unlike={"no window": {"sliding_window": None}},
        ),
        Family(
            "llama_mha",
            small("llama", num_key_value_heads="absent", torch_dtype="float16", tie_word_embeddings=False),
            "Llama 1/2: as many KV heads as heads, said by leaving the key out; F16 file",
            dtype="float16",
        ),
        Family(
            "llama_biases",
            small("llama", attention_bias=True, mlp_bias=True),
            "Llama with q/k/v/o and gate/up/down biases",
        ),
        Family("llama_mqa", small("llama", num_attention_heads=4, head_dim=8), "Llama: 4 heads over one KV head of 8"),
        Family(
            "llama_head_size",
            small("llama", head_dim=24, tie_word_embeddings=False),
            "Llama with head_dim 24, where hidden/heads is 16",
        ),
        Family(
            "llama_odd_mlp",
            small(
                "llama",
                intermediate_size=172,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                num_hidden_layers=1,
            ),
            "the odd sizes of stories260K: head 8, MLP 172",
        ),
        Family(
            "llama_float32",
            small("llama", torch_dtype="float32", head_dim=None, eos_token_id=[2, 7], num_hidden_layers=1),
            "F32 file, head_dim null, list of end ids",
            dtype="float32",
        ),
        Family(
            "llama_padded_head",
            small("llama", vocab_size=352),
            "352 rows of embedding and head for a tokenizer of 320 ids",
        ),
        Family(
            "llama_12_layers",
            small("llama", hidden_size=16, num_hidden_layers=12, head_dim=8, intermediate_size=16),
            "12 layers, for adapter settings that tell layer 1 from 10 and 11; logits only",
            greedy=False,
        ),
        Family(
            "smollm2",
            small(
                "llama",
                hidden_size=48,
                num_attention_heads=3,
                intermediate_size=64,
                rope_theta=100000,
                is_llama_config=True,
                rope_interleaved=False,
            ),
            "SmolLM2: a tied Llama with 3 heads of 16",
        ),
        Family(
            "llama_sharded",
            small("llama", tie_word_embeddings=False),
            "two shards and model.safetensors.index.json",
            shards=2,
        ),
        Family(
            "qwen2_sliding",
            small("qwen2", **window, max_window_layers=1, tie_word_embeddings=False),
            "Qwen2: layer 0 sees everything, layer 1 a window of 8 (max_window_layers)",
            unlike={**NO_WINDOW, "both layers slide": {"layer_types": ["sliding_attention"] * 2}},
        ),
        Family(
            "qwen2_layer_types",
            small("qwen2", **window, max_window_layers=2, layer_types=["sliding_attention", "full_attention"]),
            "Qwen2: layer_types decides against max_window_layers: layer 0 slides",
            unlike={**NO_WINDOW, "both layers slide": {"layer_types": ["sliding_attention"] * 2}},
        ),
        Family(
            "qwen2_window_unused",
            small("qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=0),
            "Qwen2: a window in the config that use_sliding_window false switches off",
            unlike={"window used": {"use_sliding_window": True}},
        ),
        Family(
            "qwen2_old_spelling",
            small("qwen2", rope_theta=1e6, rope_scaling=None),
            "torch_dtype, rope_theta at the top, eos_token_id a number",
            unlike=PLAIN_ROPE,
        ),
        Family(
            "qwen2_new_spelling",
            small(
                "qwen2",
                **NEW,
                rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                eos_token_id=[319, 317],
                layer_types=["full_attention", "full_attention"],
                pad_token_id=317,
            ),
            "the same model as qwen2_old_spelling: dtype, rope_parameters, eos_token_id a list",
            same_logits_as="qwen2_old_spelling",
        ),
        Family(
            "qwen3_biases",
            small("qwen3", head_dim=16, attention_bias=True, **window, max_window_layers=1),
            "Qwen3 with attention_bias (q/k/v/o) and a window of 8 in layer 1",
            unlike=NO_WINDOW,
        ),
        Family(
            "mistral_full", small("mistral", sliding_window=None, head_dim=24), "Mistral v0.3: no window, head_dim 24"
        ),
        Family(
            "llama_theta_1e6",
            small("llama", rope_theta=1e6),
            "rope base 1e6 with a prompt of 640 tokens",
            long_tokens=640,
            unlike=PLAIN_ROPE,
        ),
        Family(
            "llama_llama3_old",
            small("llama", rope_scaling=LLAMA3),
            "llama3 scaling in rope_scaling",
            unlike=PLAIN_ROPE,
        ),
        Family(
            "llama_llama3_new",
            small("llama", **NEW, rope_parameters={**LLAMA3, "rope_theta": 10000.0}),
            "the same model as llama_llama3_old: rope_parameters",
            same_logits_as="llama_llama3_old",
        ),
        Family(
            "llama_linear_old",
            small("llama", rope_scaling={"type": "linear", "factor": 4.0}),
            "linear scaling with the oldest key, type",
            unlike=PLAIN_ROPE,
        ),
        Family(
            "llama_linear_new",
            small("llama", **NEW, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}),
            "the same model as llama_linear_old: rope_parameters",
            same_logits_as="llama_linear_old",
        ),
        Family(
            "qwen2_yarn",
            small("qwen2", rope_scaling={**{k: v for k, v in YARN.items() if k != "rope_type"}, "type": "yarn"}),
            "yarn as Qwen2.5 writes it: attention factor implied by the factor",
            unlike={**PLAIN_ROPE, "attention factor 1": {"rope_scaling": {**YARN, "attention_factor": 1.0}}},
        ),
        Family(
            "llama_yarn_inferred",
            small("llama", rope_scaling={"rope_type": "yarn", "factor": 4.0}, max_position_embeddings=256),
            "yarn without original_max_position_embeddings: max_position_embeddings stands in",
            unlike=PLAIN_ROPE,
        ),
        Family(
            "llama_yarn_attention_factor",
            small(
                "llama",
                **NEW,
                rope_parameters={**yarn_new, "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0},
            ),
            "yarn with explicit attention factor and betas",
            unlike={
                "implied factor": {"rope_parameters": {**yarn_new, "beta_fast": 16.0, "beta_slow": 2.0}},
                "usual betas": {"rope_parameters": {**yarn_new, "attention_factor": 1.5}},
            },
        ),
        Family(
            "llama_yarn_mscale",
            small("llama", **NEW, rope_parameters={**yarn_new, "mscale": 1.0, "mscale_all_dim": 0.4}),
            "yarn with mscale and mscale_all_dim: attention factor is their quotient",
            unlike={"implied factor": {"rope_parameters": yarn_new}},
        ),
        Family(
            "llama_yarn_not_truncated",
            small("llama", **NEW, rope_parameters={**yarn_new, "truncate": False}),
            "yarn whose correction range is not rounded to whole dimensions",
            unlike={"truncated": {"rope_parameters": yarn_new}},
        ),
        Family(
            "qwen3_5_odd",
            tiny(
                "qwen3_5_text",
                **NEW,
                hidden_size=48,
                num_hidden_layers=3,
                head_dim=24,
                intermediate_size=64,
                bos_token_id=None,
                full_attention_interval=2,
                linear_num_key_heads=2,
                linear_num_value_heads=6,
                linear_key_head_dim=12,
                linear_value_head_dim=20,
                linear_conv_kernel_dim=4,
                rope_parameters=HALF_ROPE,
            ),
            "Qwen3.5 text model alone, untied: layer 1 attends by the interval, 3 value heads a key head, key heads of 12 "
            "and value heads of 20, half of each attention head of 24 rotated",
            unlike={
                "rope on the whole head": {"rope_parameters": {**HALF_ROPE, "partial_rotary_factor": 1.0}},
                "rope base 10000": {"rope_parameters": {**HALF_ROPE, "rope_theta": 10000.0}},
            },
        ),
    ]


def weights_of(config: dict, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors for every parameter of the model the config describes, rounded to the file's type.

    The embedding and the head have standard deviation 0.05, q and k 0.2, so that attention is far from uniform and a
    wrong rotation or mask shows in the logits; the other matrices 0.15, so that the layers outweigh the embedding and a
    tied model does not repeat its last token. Norm weights lie around 1, biases around 0, none of them negligible.
    Hybrids hold norm weights less 1, but for DeltaNet's own; their decays reach from a token to hundreds.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(as_config(config))
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}  # a tied head is listed once
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            zero_centred = config["model_type"] == "qwen3_5_text" and ".linear_attn." not in name
            value = normal(seed, name, shape, 0.15, mean=0.0 if zero_centred else 1.0)
        elif name.endswith("A_log"):
            value = normal(seed, name, shape, 1.5, mean=-2.5)
        elif name.endswith("dt_bias"):
            value = normal(seed, name, shape, 0.7, mean=-1.0)
        elif name.endswith("conv1d.weight"):
            value = normal(seed, name, shape, 0.5)
        elif name.endswith(".bias"):
            value = normal(seed, name, shape, 0.3)
        else:
            sharp = name.endswith(("q_proj.weight", "k_proj.weight"))
            value = normal(seed, name, shape, 0.2 if sharp else 0.15 if ".layers." in name else 0.05)
        tensors[name] = value.to(dtype)
    return tensors


def as_config(config: dict):
    values = copy.deepcopy(config)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def load(directory: Path) -> torch.nn.Module:
    """The checkpoint as transformers loads it, in float32, every tensor accounted for."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise ValueError(f"{directory}: {wrong}")
    return model.eval()


@torch.no_grad()
def logits_of(model, ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary], float32, no cache."""
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, ids: list[int], count: int = GREEDY_TOKENS) -> tuple[list[int], float]:
    """Greedy continuation that no end id stops, each step computed afresh; with the smallest lead of a winner."""
    answer, gap = [], float("inf")
    for _ in range(count):
        best = logits_of(model, ids + answer)[-1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        answer.append(int(best.indices[0]))
    return answer, gap


def tokenizer_of(model_type: str):
    return tiny_tokenizers.byte_level() if model_type in BYTE_LEVEL else tiny_tokenizers.sentence_piece()


def write_tokenizer(directory: Path, model_type: str) -> None:
    text = json.dumps(json.loads(tokenizer_of(model_type).to_str()), ensure_ascii=False, separators=(",", ":"))
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    byte_level = model_type in BYTE_LEVEL
    settings = tiny_tokenizers.byte_level_config() if byte_level else tiny_tokenizers.sentence_piece_config()
    write_json(directory / "tokenizer_config.json", settings)


def write_checkpoint(directory: Path, family: Family, tensors: dict[str, torch.Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", family.config)
    if family.generation_config is not None:
        write_json(directory / "generation_config.json", family.generation_config)
    write_tokenizer(directory, family.config["model_type"])
    if family.shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    size = -(-len(names) // family.shards)
    weight_map = {}
    for shard in range(family.shards):
        file = f"model-{shard + 1:05d}-of-{family.shards:05d}.safetensors"
        part = names[shard * size : (shard + 1) * size]
        save_file({name: tensors[name] for name in part}, directory / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    write_json(
        directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def prompts_of(family: Family) -> list[dict]:
    """Prompts by name: random ids of several lengths, and one text as the checkpoint's tokenizer splits it."""
    tokenizer = tokenizer_of(family.config["model_type"])
    text = "Please refund the second charge: 发票!"
    rng = rng_of(family.seed, "prompts")
    lengths = {"one": 1, "five": 5, "forty": 40, "long": family.long_tokens}
    prompts = [
        {"name": name, "ids": [int(value) for value in rng.integers(3, 317, length)]}
        for name, length in lengths.items()
    ]
    prompts.insert(2, {"name": "text", "text": text, "ids": tokenizer.encode(text).ids})
    return prompts


def stored_positions(family: Family, prompt: dict) -> list[int]:
    length = len(prompt["ids"])
    last = range(max(0, length - 2), length)
    if prompt["name"] == "long" and length > 200:
        return sorted({0, 7, 99, 299, 511, *last})
    if prompt["name"] == "forty" and not family.all_positions or prompt["name"] in ("text", "long"):
        return list(last)
    return list(range(length))


def expected_of(model, family: Family, only: tuple[str, ...] = ()) -> tuple[Arrays, list[dict], bool]:
    """Logits, prompts, and whether every greedy continuation is worth comparing."""
    arrays, prompts, telling = Arrays(), [], True
    for prompt in prompts_of(family):
        if only and prompt["name"] not in only:
            continue
        positions = stored_positions(family, prompt)
        logits = logits_of(model, prompt["ids"])
        arrays.add("logits." + prompt["name"], logits[positions])
        entry = {**prompt, "positions": positions}
        if family.greedy and prompt["name"] != "long":
            entry["greedy"], gap = greedy(model, prompt["ids"])
            entry["greedy_gap"] = round(gap, 6)
            telling &= gap >= MIN_GREEDY_GAP and len(set(entry["greedy"])) >= MIN_GREEDY_KINDS
        prompts.append(entry)
    return arrays, prompts, telling


def relative_distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


def distances(family: Family, model, tensors) -> dict[str, float]:
    """How far the logits of the long prompt move when a setting is ignored: a test that reads them would see it."""
    ids = prompts_of(family)[-1]["ids"]
    logits, result = logits_of(model, ids), {}
    for name, changes in family.unlike.items():
        config = {key: value for key, value in {**family.config, **changes}.items() if value != "absent"}
        other = AutoModelForCausalLM.from_config(as_config(config), attn_implementation="eager").eval()
        other.load_state_dict({key: value.float() for key, value in tensors.items()}, strict=False)
        result[name] = round(relative_distance(logits_of(other, ids), logits), 5)
        if result[name] < 0.01:
            raise ValueError(f"{family.name}: logits do not tell it from '{name}' ({result[name]})")
    return result


def make_family(out: Path, family: Family) -> None:
    directory = out / family.name
    while True:
        tensors = weights_of(family.config, DTYPES[family.dtype], family.seed)
        write_checkpoint(directory, family, tensors)
        model = load(directory)
        arrays, prompts, telling = expected_of(model, family)
        if telling:
            break
        family.seed += 1  # deterministic: the first seed without a near tie
    content = {
        "why": family.why,
        "seed": family.seed,
        "dtype": family.dtype,
        "ignored_setting_moves_logits_by": distances(family, model, tensors),
        "prompts": prompts,
    }
    if family.same_logits_as:
        content["same_logits_as"] = family.same_logits_as
        other = (out / family.same_logits_as / "expected.bin").read_bytes()
        if bytes(arrays.data) != other:
            raise ValueError(f"{family.name}: logits differ from {family.same_logits_as}")
    arrays.write(directory / "expected.json", content)


def make(out: Path, only: str | None = None) -> None:
    for family in families():
        if only is None or only in family.name:
            make_family(out / "models", family)
            print(f"models/{family.name}", flush=True)
