"""Which tokens transformers' generate() keeps, and with what probability: data/sampling/."""

from pathlib import Path

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from common import normal, versions, write_json

SEED = 60
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


def vectors() -> dict[str, tuple[torch.Tensor, list[int]]]:
    """Logits and the history the repetition penalty looks at. Multiples of 1/64: text holds them exactly."""
    spread = (normal(SEED, "spread", (40,), 3.0) * 64).round() / 64
    flat = (normal(SEED, "flat", (24,), 0.3) * 64).round() / 64
    ties = torch.tensor([1.0, 2.0, 2.0, 0.5, 2.0, -1.0, 0.5, 0.5, -3.0, 1.0])
    negative = torch.tensor([-8.0, -2.0, -2.5, -6.0, -2.25, -20.0, -4.0, -3.0])
    peaked = torch.tensor([0.0, 30.0, 1.0, 2.0, -5.0, 3.0])
    return {
        "spread": (spread, [3, 3, 17, 39]),
        "flat": (flat, [0, 5, 5, 5]),
        "ties": (ties, [1, 3]),
        "negative": (negative, [1, 2, 7]),
        "peaked": (peaked, [1]),
    }


SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.8},
    {"top_k": 5},
    {"top_k": 2},  # of three tied logits transformers keeps all three
    {"top_k": 1},
    {"top_k": 1000},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"min_p": 0.5},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.8, "repetition_penalty": 1.05},
    {"temperature": 1.5, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 8, "top_p": 0.9, "min_p": 0.15, "repetition_penalty": 1.2},
    {"logit_bias": {"1": 2.5, "4": -100.0}},
    {"logit_bias": {"0": 3.0, "3": 1.5}, "repetition_penalty": 1.4, "temperature": 0.8, "top_p": 0.85},
]


def processors(settings: dict) -> LogitsProcessorList:
    """In the order of generate(): bias, repetition penalty, temperature, top-k, top-p, min-p."""
    values = {**OFF, **settings}
    result = LogitsProcessorList()
    if "logit_bias" in settings:
        result.append(SequenceBiasLogitsProcessor([[[int(key)], bias] for key, bias in settings["logit_bias"].items()]))
    if values["repetition_penalty"] != 1.0:
        result.append(RepetitionPenaltyLogitsProcessor(values["repetition_penalty"]))
    if values["temperature"] != 1.0:
        result.append(TemperatureLogitsWarper(values["temperature"]))
    if values["top_k"] > 0:
        result.append(TopKLogitsWarper(values["top_k"]))
    if values["top_p"] < 1.0:
        result.append(TopPLogitsWarper(values["top_p"]))
    if values["min_p"] > 0.0:
        result.append(MinPLogitsWarper(values["min_p"]))
    return result


def case_of(logits: torch.Tensor, history: list[int], settings: dict) -> dict:
    scores = processors(settings)(torch.tensor([history]), logits[None].clone())[0]
    probabilities = scores.double().softmax(-1)
    kept = [index for index in range(len(logits)) if scores[index] > float("-inf")]
    lowest = min(scores[index] for index in kept)
    values = {**OFF, **settings}
    everything = processors({**settings, "top_p": 1.0, "min_p": 0.0})(torch.tensor([history]), logits[None].clone())[0]
    cut = values["top_p"] < 1.0 and any(
        everything[index] == lowest for index in range(len(logits)) if index not in kept
    )
    return {
        "settings": settings,
        "kept": kept,
        "probabilities": [float(probabilities[index]) for index in kept],
        "top_p_cuts_a_tie": cut,
    }


def make(out: Path) -> None:
    entries = []
    for name, (logits, history) in vectors().items():
        cases = [
            case_of(logits, history, settings)
            for settings in SETTINGS
            if all(int(key) < len(logits) for key in settings.get("logit_bias", {}))
        ]
        entries.append({"name": name, "logits": logits.tolist(), "history": history, "cases": cases})
    write_json(out / "sampling" / "sampling.json", {"made_with": versions(), "vectors": entries})
    print("sampling", flush=True)
