"""What the trained stories260K checkpoint of the shared data answers, as Llama and as Qwen2: data/stories260k/."""

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import checkpoints
from common import Arrays, write_json

PROMPTS = {
    "once": "Once upon a time",
    "zoo": "Zoo",
    "red_ball": "Lily saw a big red ball. She wanted",
}
GREEDY_TOKENS = 64


def as_qwen2(source: Path, target: Path) -> None:
    """The same weights with q/k/v biases of zero and the other model_type."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=False)
    tensors = load_file(source / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_proj", "k_proj", "v_proj"):
            key = f"model.layers.{layer}.self_attn.{name}"
            tensors[key + ".bias"] = torch.zeros(tensors[key + ".weight"].shape[0])
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    write_json(target / "config.json", config)


def make(out: Path) -> None:
    source = Path(os.environ["DUET_SHARED_DATA"]) / "stories260k"
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    model = checkpoints.load(source)
    with tempfile.TemporaryDirectory() as folder:
        as_qwen2(source, Path(folder) / "qwen2")
        qwen2 = checkpoints.load(Path(folder) / "qwen2")
    arrays, prompts = Arrays(), []
    for name, text in PROMPTS.items():
        ids = tokenizer.encode(text).ids
        logits = checkpoints.logits_of(model, ids)
        answer, gap = checkpoints.greedy(model, ids, GREEDY_TOKENS)
        if checkpoints.greedy(qwen2, ids, GREEDY_TOKENS)[0] != answer or not torch.equal(
            checkpoints.logits_of(qwen2, ids), logits
        ):
            raise ValueError(f"{name}: Qwen2 answers otherwise than Llama")
        positions = list(range(max(0, len(ids) - 4), len(ids)))
        arrays.add("logits." + name, logits[positions])
        entry = {"name": name, "text": text, "ids": ids, "positions": positions, "greedy": answer}
        prompts.append({**entry, "greedy_gap": round(gap, 6), "greedy_text": tokenizer.decode(ids + answer)})
    arrays.write(
        out / "stories260k" / "expected.json", {"why": "a real checkpoint, as Llama and as Qwen2", "prompts": prompts}
    )
    print("stories260k", flush=True)
