"""Writes data/rope_frequencies.json: inverse frequencies and attention factors of the reference stack.

Run with torch and transformers installed: python tests/golden/rope_frequencies.py
"""

import json
import pathlib

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = {
    "standard_1e6": (128, {"rope_type": "default", "rope_theta": 1e6}),
    "standard_head_8": (8, {"rope_type": "default", "rope_theta": 1e4}),
    "linear": (64, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama3": (64, {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "yarn": (128, {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}),
    "yarn_all_keys": (96, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 3.0,
                           "original_max_position_embeddings": 4096, "truncate": False, "beta_fast": 16, "beta_slow": 2,
                           "mscale": 0.7, "mscale_all_dim": 0.3}),
    "yarn_attention_factor": (64, {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "attention_factor": 0.75,
                                   "original_max_position_embeddings": 2048}),
}


def main():
    rows = {}
    for name, (head_size, parameters) in CASES.items():
        config = transformers.LlamaConfig(hidden_size=4 * head_size, num_attention_heads=4, head_dim=head_size,
                                          max_position_embeddings=131072, rope_parameters=dict(parameters))
        rotary = LlamaRotaryEmbedding(config)
        rows[name] = {"head_size": head_size, "rope_parameters": parameters,
                      "inverse_frequencies": rotary.inv_freq.tolist(), "attention_factor": rotary.attention_scaling}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    path = pathlib.Path(__file__).parent / "data" / "rope_frequencies.json"
    path.write_text(json.dumps({"versions": versions, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
