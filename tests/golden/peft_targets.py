"""Writes data/peft_targets.json: which modules PEFT adapts under many configs, with rank and scale, or that it refuses.

Run with torch, transformers and peft installed: python tests/golden/peft_targets.py
"""

import json
import pathlib
import warnings

import peft
import torch
import transformers

CASES = [
    {"target_modules": ["q_proj", "v_proj"]},
    {"target_modules": None},
    {"target_modules": "all-linear"},
    {"target_modules": ["self_attn.q_proj", "layers.1.mlp.down_proj"]},
    {"target_modules": ["1.mlp.down_proj"]},
    {"target_modules": ["proj"]},
    {"target_modules": ["model.layers.3.self_attn.k_proj", "o_proj"], "layers_to_transform": [1]},
    {"target_modules": r".*layers\.(1|10)\.self_attn\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.\d\.mlp\.up_proj"},
    {"target_modules": r"layers\.1\.mlp\.up_proj"},
    {"target_modules": r".*(?<!gate)_proj"},
    {"target_modules": r".*"},
    {"target_modules": ["mlp"]},
    {"target_modules": ["norm"]},
    {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    {"target_modules": ["q_proj"], "layers_to_transform": 1},
    {"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1, 11]},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 2], "layers_pattern": "layers"},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 2], "layers_pattern": ["h", "layers"]},
    {"target_modules": ["q_proj"], "layers_to_transform": [0, 2], "layers_pattern": "blocks"},
    {"target_modules": ["q_proj"], "layers_to_transform": []},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.1.self_attn.q_proj", "v_proj"]},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r".*\.[02]\.self_attn\.v_proj"},
    {"target_modules": ["q_proj", "v_proj"], "exclude_modules": r"layers.0.self_attn.v_proj"},
    {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["layers.1", "norm"]},
    {"target_modules": ["q_proj"], "r": 16, "lora_alpha": 16, "use_rslora": True},
    {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 8, "rank_pattern": {"down_proj": 8},
     "alpha_pattern": {"down_proj": 8}},
    {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8, "alpha_pattern": {"layers.1.self_attn.q_proj": 32}},
    {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8, "alpha_pattern": {"1.self_attn.q_proj": 32}},
    {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8,
     "alpha_pattern": {"layers.1.self_attn.q_proj": 16, "q_proj": 32, "layers.2.self_attn.q_proj": 64}},
    {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8, "rank_pattern": {"^model.layers.[0-4].self_attn.q_proj": 2,
                                                                             "proj": 6, "q_pro": 7}},
    {"target_modules": ["q_proj", "k_proj"], "r": 4, "lora_alpha": 8, "use_rslora": True,
     "rank_pattern": {r".*\.(3|4)\..*k_proj": 9}, "alpha_pattern": {"self_attn.(q|k)_proj": 5}},
    {"target_modules": ["q_proj"], "r": 4, "lora_alpha": 8, "rank_pattern": {"nothing": 3}},
]


def resolve(settings):
    torch.manual_seed(7)
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=12, num_attention_heads=2,
                                      num_key_value_heads=1, vocab_size=64)
    model = transformers.LlamaForCausalLM(config)
    try:
        adapted = peft.get_peft_model(model, peft.LoraConfig(**settings))
    except (ValueError, TypeError) as error:
        return {"refused": str(error)[:200]}
    prefix = "base_model.model."
    modules = {}
    saved = []
    for name, module in adapted.named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            modules[name.removeprefix(prefix)] = [module.r["default"], module.scaling["default"]]
        if isinstance(module, peft.utils.other.ModulesToSaveWrapper):
            saved.append(name.removeprefix(prefix))
    return {"modules": modules, "saved": saved}


def main():
    warnings.simplefilter("ignore")
    rows = [{"config": case, **resolve(case)} for case in CASES]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    path = pathlib.Path(__file__).parent / "data" / "peft_targets.json"
    path.write_text(json.dumps({"made_with": versions, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
