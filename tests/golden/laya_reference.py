"""What a Laya checkpoint answers, stated in Python: rows, encoder and decision head, answers.

The encoder is transformers' ModernBertModel; the decision head is written out here, and again with torch's own layers
for comparison. Everything runs in float32 with the file's weights.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import ModernBertConfig, ModernBertModel

from laya_tokenizers import Texts

TYPES = {"choice": 0, "score": 1, "noul": 2}


@dataclass
class Row:
    question: str
    type: str
    ids: list[int]
    markers: list[int]
    truncated: bool
    options: int
    distinct: int
    per_option: int | None


def json_text(value) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def criteria_of(question: dict):
    """A list of labels is a choice without descriptions; a label written twice is one option."""
    criteria = question.get("criteria")
    if question["type"] == "choice" and isinstance(criteria, list):
        return dict.fromkeys(criteria)
    return criteria


def option_texts(question: dict) -> list[str]:
    criteria = criteria_of(question)
    if question["type"] == "choice":
        return [str(label) if text in (None, "") else f"{label}: {json_text(text)}" for label, text in criteria.items()]
    if question["type"] == "score":
        return [f"level {index}: {json_text(text)}" for index, text in enumerate(criteria)]
    labels = question.get("labels", {"false": "false", "true": "true"})
    usual = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}
    texts = []
    for side in ("false", "true"):
        text = (criteria or {}).get(side)
        texts.append(f"{labels[side].strip()}: {usual[side] if text in (None, '') else json_text(text)}")
    return texts


def build_row(texts: Texts, state, name: str, question: dict, max_len: int, head_max_len: int) -> Row:
    def unmasked(text: str) -> str:
        return text.replace(texts.roles["mask"], " ")

    head = texts.ids(f"{question['type']} question: {unmasked(json_text(question['instructions']))}")
    mask = [texts.special("mask")]
    options = [mask + texts.ids(" " + unmasked(text))[:48] for text in option_texts(question)]
    budget = head_max_len - sum(map(len, options))
    per_option = None
    if budget < 16:
        per_option = max(4, (head_max_len - 16) // len(options))
        options = [option[:per_option] for option in options]
        budget = head_max_len - sum(map(len, options))
    sep = [texts.special("sep")]
    ids = [texts.special("cls")] + head[: max(8, budget)] + sep
    markers = []
    for option in options:
        markers.append(len(ids))
        ids = ids + option
    ids = ids + sep
    room = max(0, max_len - len(ids) - 1)
    state_ids = texts.ids(unmasked(json_text(state)))
    if isinstance(state, list):  # a conversation keeps its newest turns
        kept = state_ids[max(0, len(state_ids) - room) :]
    else:
        kept = state_ids[:room]
    ids = (ids + kept + sep)[:max_len]
    markers = [marker for marker in markers if marker < max_len]
    if len(markers) < len(options):
        raise ValueError(f"question '{name}' options exceed head_max_len={head_max_len}")
    distinct = len(set(map(tuple, options)))
    truncated = len(kept) < len(state_ids)
    return Row(name, question["type"], ids, markers, truncated, len(options), distinct, per_option)


def build_rows(texts: Texts, state, questions: dict, agent: dict) -> list[Row]:
    lengths = agent["max_len"], agent["head_max_len"]
    return [build_row(texts, state, name, question, *lengths) for name, question in questions.items()]


def usage_of(rows: list[Row]) -> dict:
    cut = [row.question for row in rows if row.truncated]
    usage: dict = {"input_tokens": sum(len(row.ids) for row in rows), "output_tokens": 0}
    usage.update(truncated=bool(cut), truncated_questions=cut)
    collapsed = {
        row.question: {"total": row.options, "distinct": row.distinct, "tokens_per_option": row.per_option}
        for row in rows
        if row.distinct < row.options
    }
    return {**usage, "options": collapsed} if collapsed else usage


class Model:
    """A checkpoint read back from its folder."""

    def __init__(self, directory: Path, attention: str = "eager", **changes):
        self.agent = json.loads((directory / "rl_agent_config.json").read_text(encoding="utf-8"))
        tensors = load_file(directory / "model.safetensors")
        self.tensors = {name: value.float() for name, value in tensors.items()}
        config = json.loads((directory / "encoder" / "config.json").read_text(encoding="utf-8"))
        config = ModernBertConfig.from_dict({**config, **changes})
        config._attn_implementation = attention
        self.encoder = ModernBertModel(config).eval()
        self.encoder.load_state_dict(self.part("encoder."), strict=True)

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        return {name[len(prefix) :]: value for name, value in self.tensors.items() if name.startswith(prefix)}

    def double(self) -> "Model":
        self.encoder.double()
        self.tensors = {name: value.double() for name, value in self.tensors.items()}
        return self

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.tensors[name + "weight"], self.tensors[name + "bias"])

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.tensors[name + "weight"], self.tensors[name + "bias"], 1e-5)

    @torch.no_grad()
    def encode(self, ids: list[int]) -> torch.Tensor:
        """[tokens, hidden], behind final_norm."""
        return self.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]

    def attend(self, name: str, x: torch.Tensor) -> torch.Tensor:
        n, d = x.shape
        heads = max(1, d // 64)
        q, k, v = self.linear(name + "in_proj_", x).view(n, 3, heads, d // heads).permute(1, 2, 0, 3)
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(d // heads), -1)
        return self.linear(name + "out_proj.", (weights @ v).transpose(0, 1).reshape(n, d))

    def decide(self, x: torch.Tensor, kind: int, markers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """A logit for each option and the two of the act head, from the encoder's output of one row."""
        h = x + self.tensors["type_emb.weight"][kind]
        for layer in range(self.agent["head_layers"]):
            name = f"head.layers.{layer}."
            h = h + self.attend(name + "self_attn.", self.norm(name + "norm1.", h))
            inner = F.relu(self.linear(name + "linear1.", self.norm(name + "norm2.", h)))
            h = h + self.linear(name + "linear2.", inner)
        logits = self.score(h[markers])
        return logits, self.act(h[0], logits)

    def score(self, h: torch.Tensor) -> torch.Tensor:
        return self.linear("scorer.3.", F.gelu(self.linear("scorer.1.", self.norm("scorer.0.", h)))).squeeze(-1)

    def act(self, cls: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(logits, -1)
        count = max(len(p), 2)
        entropy = -(p * torch.log(p.clamp_min(1e-9))).sum() / math.log(count)
        best, second = F.pad(p, (0, 1)).topk(2).values  # the padding is the second of a single option
        features = torch.stack([best, best - second, entropy, torch.tensor(count / 255.0, dtype=p.dtype)])
        return self.linear("act_head.2.", F.gelu(self.linear("act_head.0.", torch.cat([cls, features]))))

    @torch.no_grad()
    def forward(self, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
        return self.decide(self.encode(row.ids), TYPES[row.type], row.markers)

    @torch.no_grad()
    def batch_logits(self, rows: list[Row], pad: int) -> list[torch.Tensor]:
        """The same option logits as upstream runs them: all rows padded in one batch, through torch's own layers."""
        longest = max(len(row.ids) for row in rows)
        ids = torch.tensor([row.ids + [pad] * (longest - len(row.ids)) for row in rows])
        mask = torch.tensor([[1] * len(row.ids) + [0] * (longest - len(row.ids)) for row in rows])
        h = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        h = h + self.tensors["type_emb.weight"][[TYPES[row.type] for row in rows]][:, None]
        d = h.shape[-1]
        for index in range(self.agent["head_layers"]):
            layer = torch.nn.TransformerEncoderLayer(
                d, max(1, d // 64), 4 * d, dropout=0.0, activation="relu", batch_first=True, norm_first=True
            ).eval()
            layer.load_state_dict(self.part(f"head.layers.{index}."), strict=True)
            h = layer(h, src_key_padding_mask=~mask.bool())
        return [self.score(h[index, row.markers]) for index, row in enumerate(rows)]


def temperature_of(agent: dict, kind: str, options: int) -> float:
    size = "2" if options <= 2 else "3-5" if options <= 5 else "6-10" if options <= 10 else "11+"
    value = agent.get("temperature_by_options", {}).get(f"{kind}:{size}", agent["temperature"][TYPES[kind]])
    return min(5.0, max(0.5, value)) if math.isfinite(value) else 1.0


def probabilities_of(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits / np.float32(temperature)
    powers = np.exp(scaled - scaled.max())
    return powers / powers.sum()


def four(value) -> float:
    return round(float(value), 4)


def answer_of(question: dict, p: np.ndarray, act: float) -> dict:
    count = len(p)
    entropy = -(p * np.log(np.clip(p, 1e-12, 1.0))).sum()
    spread = float(np.clip(1.0 - entropy / math.log(count), 0.0, 1.0)) if count > 1 else 1.0
    rounded = [four(value) for value in p]
    common = {"answer_confidence": four(p.max()), "action": {"act_probability": four(act)}}
    if question["type"] == "choice":
        labels = list(criteria_of(question))
        answer = {"choice": labels[int(p.argmax())], "probabilities": dict(zip(map(str, labels), rounded, strict=True))}
    elif question["type"] == "score":
        answer = {
            "score": four((np.arange(count) * p).sum()),
            "legend": {str(index): text for index, text in enumerate(question["criteria"])},
            "probabilities": {str(index): value for index, value in enumerate(rounded)},
        }
    else:
        true = float(p[1])
        answer, spread = {"noul": four(true)}, max(true, 1.0 - true)
    return {"type": question["type"], **answer, "confidence": four(spread), **common}
