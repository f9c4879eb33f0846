"""What a Kev checkpoint answers, stated in Python: text, tokens, rows, pointer head, answers; and a backbone written
out in float64 to compare transformers' with.

Backbones and adapters are read by transformers and PEFT, in float32.
"""

import copy
import math
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import DynamicCache

from kev_tokenizers import MARKERS


def render(value, indent: int = 0) -> str:
    """JSON as lines of text. str() of numbers and booleans is Python's; an item loses all whitespace at its start."""
    if value is None:
        return ""
    if isinstance(value, (str, int, float)):
        return str(value)
    pad = "  " * indent
    if isinstance(value, list):
        return "\n".join(pad + "- " + render(item, indent + 1).lstrip() for item in value)
    lines = []
    for key, item in value.items():
        if isinstance(item, (dict, list)):
            lines.append(pad + key + ":\n" + render(item, indent + 1))
        else:
            lines.append(pad + key + ": " + render(item))
    return "\n".join(lines)


def option_text(name: str, description) -> str:
    return name if description is None or description == "" else name + ": " + render(description)


def option_texts(question: dict) -> list[str]:
    criteria = question.get("criteria")
    if question["type"] == "score":
        return [render(level) for level in criteria]
    if question["type"] == "choice":
        return [option_text(name, description) for name, description in criteria.items()]
    criteria = criteria or {}
    return [option_text("no", criteria.get("false")), option_text("yes", criteria.get("true"))]


@dataclass
class Tokens:
    tokenizer: Tokenizer

    def marker(self, role: str) -> int:
        return self.tokenizer.token_to_id(MARKERS[role])

    def ids(self, text: str) -> list[int]:
        """Of text that a client wrote: it cannot spell a marker, but other added tokens."""
        text = re.sub(r"<\|([A-Za-z0-9_]+)\|>", r"<¦\1¦>", text)
        return self.tokenizer.encode(text, add_special_tokens=False).ids


@dataclass
class Row:
    question: str
    type: str
    state_ids: list[int]
    branch_ids: list[int]
    decide: int  # index in state and branch together
    closes: list[int]

    @property
    def ids(self) -> list[int]:
        return self.state_ids + self.branch_ids


def state_ids(tokens: Tokens, state) -> list[int]:
    return [tokens.marker("state")] + tokens.ids(render(state))


def build_row(tokens: Tokens, state: list[int], name: str, question: dict) -> Row:
    branch = [tokens.marker("question")] + tokens.ids(render(question.get("instructions")))
    closes = []
    for text in option_texts(question):
        branch += [tokens.marker("option")] + tokens.ids(text) + [tokens.marker("option_end")]
        closes.append(len(state) + len(branch) - 1)
    branch.append(tokens.marker("decide"))
    return Row(name, question["type"], state, branch, len(state) + len(branch) - 1, closes)


def build_rows(tokens: Tokens, state, questions: dict) -> list[Row]:
    ids = state_ids(tokens, state)
    return [build_row(tokens, ids, name, question) for name, question in questions.items()]


class Head:
    """q reads the hidden row of the decide marker, k those of the option ends."""

    def __init__(self, tensors: dict[str, torch.Tensor], temperature: float = 1.0):
        self.tensors, self.temperature = tensors, temperature

    def swapped(self) -> "Head":
        tensors = {{"q": "k", "k": "q"}[name[0]] + name[1:]: value for name, value in self.tensors.items()}
        return Head(tensors, self.temperature)

    def logits(self, hidden: torch.Tensor, row: Row) -> torch.Tensor:
        """One an option, before temperature."""
        tensors = {name: value.to(hidden.dtype) for name, value in self.tensors.items()}
        q = F.linear(hidden[row.decide], tensors["q.weight"], tensors["q.bias"])
        k = F.linear(hidden[row.closes], tensors["k.weight"], tensors["k.bias"])
        return (k @ q) / math.sqrt(len(q))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.softmax(logits / self.temperature, -1)


@torch.no_grad()
def hidden_rows(backbone, ids: list[int]) -> torch.Tensor:
    """[tokens, hidden], behind the final norm; one causal row without a cache."""
    return backbone(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]


@torch.no_grad()
def hidden_rows_continued(backbone, rows: list[Row]) -> list[torch.Tensor]:
    """The same with the state computed once and each branch run on a copy of its cache; branch rows only."""
    cache = DynamicCache(config=backbone.config)
    backbone(input_ids=torch.tensor([rows[0].state_ids]), past_key_values=cache, use_cache=True)
    results = []
    for row in rows:
        output = backbone(
            input_ids=torch.tensor([row.branch_ids]), past_key_values=copy.deepcopy(cache), use_cache=True
        )
        results.append(output.last_hidden_state[0])
    return results


@torch.no_grad()
def hidden_rows_packed(backbone, rows: list[Row]) -> list[torch.Tensor]:
    """The same with all branches behind one state, positions starting again behind it, each seeing the state and
    itself; branch rows only."""
    state = len(rows[0].state_ids)
    segments, positions, ids = [0] * state, list(range(state)), list(rows[0].state_ids)
    for index, row in enumerate(rows):
        segments += [index + 1] * len(row.branch_ids)
        positions += range(state, state + len(row.branch_ids))
        ids += row.branch_ids
    segment = torch.tensor(segments)
    seen = (segment[None, :] == 0) | (segment[None, :] == segment[:, None])
    seen &= torch.ones_like(seen).tril()
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    output = backbone(
        input_ids=torch.tensor([ids]), position_ids=torch.tensor([positions]), attention_mask=mask, use_cache=False
    )
    return [output.last_hidden_state[0][segment == index + 1] for index in range(len(rows))]


class Plain:
    """The backbones written out in float64: tensors by the bare names (layers.0.self_attn.q_proj.weight), config with
    the keys of the text part. Gated DeltaNet runs a token at a time. Three mistakes can be asked for: value heads that
    take key heads in turn, and a convolution or a recurrent memory that begins afresh at a token."""

    def __init__(self, config: dict, tensors: dict[str, torch.Tensor], tiled=False, conv_from=0, memory_from=0):
        self.config, self.tiled, self.conv_from, self.memory_from = config, tiled, conv_from, memory_from
        self.tensors = {name: value.double() for name, value in tensors.items()}
        self.hybrid = "linear_num_value_heads" in config
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self.tensors[name + ".weight"]
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * (1 + weight if self.hybrid else weight)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.tensors[name + ".weight"], self.tensors.get(name + ".bias"))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, heads, head_dim]: pairs (i, i + dims / 2) of the first dims turn, the rest stays."""
        rope = self.config.get("rope_parameters", self.config)
        dims = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        frequencies = rope["rope_theta"] ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x[..., : dims // 2], x[..., dims // 2 : dims]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., dims:]], -1)

    def attend(self, name: str, x: torch.Tensor) -> torch.Tensor:
        n = len(x)
        q = self.linear(name + "q_proj", x).view(n, self.heads, -1)
        q, gate = q[..., : self.head_dim], q[..., self.head_dim :]
        k = self.linear(name + "k_proj", x).view(n, self.kv_heads, -1)
        v = self.linear(name + "v_proj", x).view(n, self.kv_heads, -1)
        if name + "q_norm.weight" in self.tensors:
            q, k = self.norm(name + "q_norm", q), self.norm(name + "k_norm", k)
        group = self.heads // self.kv_heads
        q, k = self.rotate(q), self.rotate(k).repeat_interleave(group, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
        output = torch.einsum("hij,jhd->ihd", torch.softmax(scores, -1), v.repeat_interleave(group, 1))
        if self.hybrid:
            output = output * torch.sigmoid(gate)
        return self.linear(name + "o_proj", output.reshape(n, -1))

    def delta(self, name: str, x: torch.Tensor) -> torch.Tensor:
        key_heads, value_heads = self.config["linear_num_key_heads"], self.config["linear_num_value_heads"]
        dk, dv = self.config["linear_key_head_dim"], self.config["linear_value_head_dim"]
        n, u = len(x), self.linear(name + "in_proj_qkv", x)
        taps = self.tensors[name + "conv1d.weight"][:, 0]  # [channels, 4], the last one is for the token itself

        def convolved(part: torch.Tensor) -> torch.Tensor:
            padded = F.pad(part, (0, 0, taps.shape[1] - 1, 0))
            return sum(padded[j : j + len(part)] * taps[:, j] for j in range(taps.shape[1]))

        u = torch.cat([convolved(u[: self.conv_from]), convolved(u[self.conv_from :])])
        q, k, v = F.silu(u).split([key_heads * dk, key_heads * dk, value_heads * dv], -1)

        def unit(heads: torch.Tensor) -> torch.Tensor:
            return heads * torch.rsqrt(heads.pow(2).sum(-1, keepdim=True) + 1e-6)

        index = torch.arange(value_heads)
        key_head = index % key_heads if self.tiled else index * key_heads // value_heads
        q = unit(q.view(n, key_heads, dk))[:, key_head] / math.sqrt(dk)
        k = unit(k.view(n, key_heads, dk))[:, key_head]
        v = v.view(n, value_heads, dv)
        beta = torch.sigmoid(self.linear(name + "in_proj_b", x))
        g = -self.tensors[name + "A_log"].exp() * F.softplus(
            self.linear(name + "in_proj_a", x) + self.tensors[name + "dt_bias"]
        )
        memory = torch.zeros(value_heads, dk, dv, dtype=torch.float64)
        outputs = []
        for t in range(n):
            if t == self.memory_from:
                memory = torch.zeros_like(memory)
            memory = memory * g[t].exp()[:, None, None]
            change = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", memory, k[t]))
            memory = memory + torch.einsum("hk,hv->hkv", k[t], change)
            outputs.append(torch.einsum("hkv,hk->hv", memory, q[t]))
        output = torch.stack(outputs)
        output = output * torch.rsqrt(output.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        output = output * self.tensors[name + "norm.weight"]
        output = output * F.silu(self.linear(name + "in_proj_z", x).view(n, value_heads, dv))
        return self.linear(name + "out_proj", output.reshape(n, -1))

    @torch.no_grad()
    def hidden_rows(self, ids: list[int]) -> torch.Tensor:
        x = self.tensors["embed_tokens.weight"][ids]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"layers.{layer}."
            h = self.norm(name + "input_layernorm", x)
            if name + "linear_attn.A_log" in self.tensors:
                x = x + self.delta(name + "linear_attn.", h)
            else:
                x = x + self.attend(name + "self_attn.", h)
            h = self.norm(name + "post_attention_layernorm", x)
            inner = F.silu(self.linear(name + "mlp.gate_proj", h)) * self.linear(name + "mlp.up_proj", h)
            x = x + self.linear(name + "mlp.down_proj", inner)
        return self.norm("norm", x)


def compensated_sum(values) -> float:
    """sum() of Python 3.12 and newer (Neumaier's)."""
    total, lost = 0.0, 0.0
    for value in values:
        new = total + value
        lost += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
        total = new
    return total + lost


def choice_confidence(p: list[float]) -> float:
    count, total = len(p), compensated_sum(p)
    if count == 1:
        return 1.0
    p = [value / total for value in p] if total else [1.0 / count] * count
    return (max(p) - 1.0 / count) / (1.0 - 1.0 / count)


def score_confidence(p: list[float]) -> float:
    count, mode = len(p), p.index(max(p))
    if count == 1:
        return 1.0
    spread = compensated_sum(abs(i - (count - 1) / 2) for i in range(count)) / count
    return max(0.0, 1.0 - compensated_sum(value * abs(i - mode) for i, value in enumerate(p)) / spread)


def answer_of(question: dict, p: list[float]) -> dict:
    if question["type"] == "noul":
        return {"type": "noul", "noul": round(p[1], 4)}
    if question["type"] == "choice":
        names = list(question["criteria"])
        return {
            "type": "choice",
            "choice": names[p.index(max(p))],
            "confidence": round(choice_confidence(p), 4),
            "probabilities": {name: round(value, 4) for name, value in zip(names, p, strict=True)},
        }
    return {
        "type": "score",
        "score": round(compensated_sum(i * value for i, value in enumerate(p)), 4),
        "legend": {str(i): text for i, text in enumerate(option_texts(question))},
        "probabilities": {str(i): round(value, 4) for i, value in enumerate(p)},
        "confidence": round(score_confidence(p), 4),
    }
