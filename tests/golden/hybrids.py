"""Logits of the hybrid that Kev's golden data stand on, as a language model: data/hybrids/."""

from pathlib import Path

import checkpoints
from checkpoints import Family

CHECKPOINT = "kev/hybrid/base"


def make(out: Path) -> None:
    model = checkpoints.load(out / CHECKPOINT)
    family = Family(
        "kev_base",
        {"model_type": "qwen3_5_text"},  # whose tokenizer makes the prompt of text
        "Qwen3.5 text model inside a picture model's checkpoint: names, unused parts and config as published",
    )
    while True:
        arrays, prompts, telling = checkpoints.expected_of(model, family)
        if telling:
            break
        family.seed += 1  # other prompts
    content = {"why": family.why, "checkpoint": CHECKPOINT, "seed": family.seed, "prompts": prompts}
    arrays.write(out / "hybrids" / family.name / "expected.json", content)
    print(f"hybrids/{family.name}", flush=True)
