#!/usr/bin/env python3
"""Tiny Laya checkpoints in the published layout with the reference's rows, logits and answers: data/laya/.

    laya.py [--out DIR]     write them (also a part of make_golden.py)

The English tokenizer is read from $DUET_SHARED_DATA, by default ../shared/data beside the repository.
"""

import argparse
import json
import lzma
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import laya_cases
import laya_tokenizers
from common import normal, versions, write_json
from laya_reference import Model, Row, answer_of, build_rows, probabilities_of, temperature_of, usage_of
from laya_tokenizers import Texts

MAX_CHECKPOINT_BYTES = 700_000  # without golden.json
LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
MIN_LEAD = 0.003  # of the best option's probability over the second: an engine within 1e-3 picks the same
MIN_MOVE = 0.05  # of a probability between two states: answers come from the state
BUCKETS = {  # as English ships them
    "choice:2": 1.9063563346862793,
    "choice:3-5": 1.7601518630981445,
    "choice:6-10": 1.0000158548355103,
    "choice:11+": 0.10058280825614929,
    "score:3-5": 1.2514300346374512,
    "noul:2": 1.983399510383606,
}


@dataclass
class Checkpoint:
    name: str
    why: str
    encoder: dict  # changes to encoder/config.json
    agent: dict  # changes to rl_agent_config.json
    tokenizer: Tokenizer
    roles: dict[str, str]
    encoder_type: torch.dtype = torch.float16
    head_type: torch.dtype = torch.float16
    temperature_type: torch.dtype = torch.float32
    old_encoder: bool = False  # config as transformers 4 writes it
    hub_tokenizer: bool = True
    ascii_only: bool = False
    encoder_case: str = "empty_state"  # its first row is given with the encoder's output
    seed: int = 1
    unlike: dict[str, dict] = field(default_factory=dict)  # name -> config changes that must move the logits


def checkpoints() -> list[Checkpoint]:
    no_window = {"no window": {"local_attention": 16384}}
    half_window = {"half the window": {"local_attention": 8}}
    tanh = {"tanh gelu": {"hidden_activation": "gelu_pytorch_tanh"}}
    english = laya_tokenizers.byte_level(500)
    return [
        Checkpoint(
            "tiny",
            "the smallest; rows of 64 ids, so that nearly every budget rule bites; no temperature_by_options",
            {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            {"max_len": 64, "head_max_len": 32, "temperature": [1.5, 1.5, 1.5], "temperature_by_options": None},
            english,
            laya_tokenizers.ENGLISH_ROLES,
            unlike={"one rope base": rope(160000.0, 160000.0), **tanh},
        ),
        Checkpoint(
            "windowed",
            "a window that short rows leave, other rope bases in the older keys, the English temperatures",
            {
                "hidden_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "local_attention": 16,
                "global_rope_theta": 80000.0,
                "local_rope_theta": 5000.0,
            },
            {"max_len": 160, "head_max_len": 64},
            english,
            laya_tokenizers.ENGLISH_ROLES,
            old_encoder=True,
            hub_tokenizer=False,
            unlike={
                **no_window,
                **half_window,
                "usual rope bases": {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
                "no layer_types": {"global_attn_every_n_layers": 2},
                **tanh,
            },
        ),
        Checkpoint(
            "multi",
            "one rope base, BF16 encoder and F32 head, other special ids than encoder/config.json says",
            {
                "hidden_size": 64,
                "num_hidden_layers": 3,
                "num_attention_heads": 1,
                "intermediate_size": 32,
                "local_attention": 32,
                **rope(160000.0, 160000.0),
                "bos_token_id": 2,
                "cls_token_id": 1,
                "eos_token_id": 1,
                "sep_token_id": 1,
                "pad_token_id": 0,
                "mask_token_id": 4,
            },
            {
                "encoder": "jhu-clsp/mmBERT-base",
                "max_len": 192,
                "head_max_len": 96,
                "temperature": [1.0, 1.0, 1.0],
                "temperature_by_options": {},
            },
            laya_tokenizers.metaspace(392),
            laya_tokenizers.MULTI_ROLES,
            encoder_type=torch.bfloat16,
            head_type=torch.float32,
            hub_tokenizer=False,
            unlike={**no_window, "local rope base 10000": rope(160000.0, 10000.0), **tanh},
        ),
        Checkpoint(
            "two_heads",
            "two heads of 64 in encoder and decision head, one layer each; temperatures shadowed by inherited buckets",
            {
                "hidden_size": 128,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 24,
            },
            {"head_layers": 1, "max_len": 128, "head_max_len": 64, "temperature": [1.015, 1.037, 1.058]},
            laya_tokenizers.byte_level(128, ascii_only=True),
            laya_tokenizers.ENGLISH_ROLES,
            temperature_type=torch.float16,
            hub_tokenizer=False,
            ascii_only=True,
            encoder_case="single_option",
            unlike=tanh,
        ),
    ]


def rope(full: float, sliding: float) -> dict:
    bases = {"full_attention": full, "sliding_attention": sliding}
    return {
        "rope_parameters": {name: {"rope_theta": base, "rope_type": "default"} for name, base in bases.items()},
    }


def encoder_config(checkpoint: Checkpoint, **changes) -> dict:
    texts = Texts(checkpoint.tokenizer, checkpoint.roles)
    config = {
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": texts.special("cls"),
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": texts.special("cls"),
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "dtype": "float32",
        "embedding_dropout": 0.0,
        "eos_token_id": texts.special("sep"),
        "global_attn_every_n_layers": 3,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-05,
        "local_attention": 128,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "pad_token_id": texts.special("pad"),
        "position_embedding_type": "absolute",
        "repad_logits_with_grad": False,
        "sep_token_id": texts.special("sep"),
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
        "tie_word_embeddings": True,
        "transformers_version": "5.0.0",
        "vocab_size": checkpoint.tokenizer.get_vocab_size(),
        **rope(160000.0, 10000.0),
        **checkpoint.encoder,
    }
    if checkpoint.old_encoder:
        del config["rope_parameters"], config["dtype"]
        config.update(torch_dtype="float32", transformers_version="4.48.0")
    else:
        kinds = ["sliding_attention" if layer % 3 else "full_attention" for layer in range(config["num_hidden_layers"])]
        config.setdefault("layer_types", kinds)
    return dict(sorted({**config, **changes}.items()))


def agent_config(checkpoint: Checkpoint) -> dict:
    config = {
        "encoder": "answerdotai/ModernBERT-large",
        "head_layers": 2,
        "max_len": 512,
        "head_max_len": 192,
        "max_prefixes": 6,
        "act_costs": {"escalate": 0.5},
        "cost_wrong_act": 3.0,
        "amp_dtype": "bf16",
        "model_name": "rl-agent",
        "temperature": [1.6369030475616455, 1.2514300346374512, 1.983399510383606],
        "temperature_by_options": BUCKETS,
        **checkpoint.agent,
    }
    return {key: value for key, value in config.items() if value is not None}


def shapes_of(encoder: dict, agent: dict) -> dict[str, tuple]:
    d, inner = encoder["hidden_size"], encoder["intermediate_size"]
    shapes = {
        "encoder.embeddings.tok_embeddings.weight": (encoder["vocab_size"], d),
        "encoder.embeddings.norm.weight": (d,),
    }
    for layer in range(encoder["num_hidden_layers"]):
        prefix = f"encoder.layers.{layer}."
        if layer > 0:
            shapes[prefix + "attn_norm.weight"] = (d,)
        shapes[prefix + "attn.Wqkv.weight"] = (3 * d, d)
        shapes[prefix + "attn.Wo.weight"] = (d, d)
        shapes[prefix + "mlp_norm.weight"] = (d,)
        shapes[prefix + "mlp.Wi.weight"] = (2 * inner, d)
        shapes[prefix + "mlp.Wo.weight"] = (d, inner)
    shapes["encoder.final_norm.weight"] = (d,)
    shapes["type_emb.weight"] = (3, d)

    def with_bias(name: str, *shape: int) -> None:
        shapes[name + "weight"] = shape
        shapes[name + "bias"] = shape[:1]

    for layer in range(agent["head_layers"]):
        prefix = f"head.layers.{layer}."
        with_bias(prefix + "norm1.", d)
        with_bias(prefix + "norm2.", d)
        with_bias(prefix + "self_attn.in_proj_", 3 * d, d)
        with_bias(prefix + "self_attn.out_proj.", d, d)
        with_bias(prefix + "linear1.", 4 * d, d)
        with_bias(prefix + "linear2.", d, 4 * d)
    with_bias("scorer.0.", d)
    with_bias("scorer.1.", d, d)
    with_bias("scorer.3.", 1, d)
    with_bias("act_head.0.", 256, d + 4)
    with_bias("act_head.2.", len(agent["act_costs"]) + 1, 256)
    shapes["temperature"] = (3,)
    return shapes


def weights_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Random tensors, rounded to the file's types. The temperatures among them are wrong on purpose: nothing reads
    them. The act head takes its four features seriously and hidden states lightly, so that it is not saturated."""
    tensors = {}
    for name, shape in shapes_of(encoder_config(checkpoint), agent_config(checkpoint)).items():
        if name == "temperature":
            tensors[name] = torch.tensor([0.25, 3.0, 9.0], dtype=checkpoint.temperature_type)
            continue
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "scorer.0.weight")):
            value = normal(checkpoint.seed, name, shape, 0.15, mean=1.0)
        elif name.endswith("bias"):
            value = normal(checkpoint.seed, name, shape, 0.1)
        else:
            table = name in ("encoder.embeddings.tok_embeddings.weight", "type_emb.weight")
            value = normal(checkpoint.seed, name, shape, 0.5 if table else 2.0 / math.sqrt(shape[1]))
        if name == "act_head.2.weight":
            value *= 0.5
        if name == "act_head.0.weight":
            value *= 0.2
            value[:, -4:] *= torch.tensor([20.0, 20.0, 20.0, 200.0])
        encoder = name.startswith("encoder.")
        tensors[name] = value.to(checkpoint.encoder_type if encoder else checkpoint.head_type)
    return tensors


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "rl_agent_config.json", agent_config(checkpoint))
    write_json(directory / "encoder" / "config.json", encoder_config(checkpoint))
    save_file(weights_of(checkpoint), directory / "model.safetensors")  # published files have no metadata either
    text = laya_tokenizers.tokenizer_json(checkpoint.tokenizer, checkpoint.hub_tokenizer)
    settings = laya_tokenizers.tokenizer_config(checkpoint.roles, 8192)
    write_json(directory / "tokenizer" / "tokenizer_config.json", settings)
    (directory / "tokenizer" / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


def digits(values, count: int = 9) -> list[float]:
    """Nine digits give a float32 back exactly."""
    return [float(f"{float(value):.{count}g}") for value in values]


class NearTie(Exception):
    pass


def case_of(model: Model, upstream: Model, texts: Texts, name: str, state, questions: dict, with_encoder: bool) -> dict:
    """`upstream` is the same model with the attention that upstream runs, for comparison."""
    rows = build_rows(texts, state, questions, model.agent)
    together = upstream.batch_logits(rows, texts.special("pad")) if rows else []
    entries, answers = [], {}
    for row, batched in zip(rows, together, strict=True):
        logits, act_logits = model.forward(row)
        if not torch.allclose(logits, batched, rtol=1e-4, atol=1e-4):
            raise ValueError(f"{name}/{row.question}: torch's layers answer otherwise: {logits} {batched}")
        temperature = temperature_of(model.agent, row.type, row.options)
        p = probabilities_of(logits.numpy(), temperature)
        best = np.sort(p)[::-1]
        if row.type == "choice" and row.options > 1 and best[0] - best[1] < MIN_LEAD:
            raise NearTie(f"{name}/{row.question}")
        entries.append(
            {
                "question": row.question,
                "type": row.type,
                "ids": row.ids,
                "markers": row.markers,
                "truncated": row.truncated,
                "logits": digits(logits),
                "act_logits": digits(act_logits),
                "probabilities": digits(p),
                "temperature": temperature,
            }
        )
        answers[row.question] = answer_of(questions[row.question], p, torch.softmax(act_logits, -1)[0])
    case = {"name": name, "state": state, "questions": questions, "rows": entries}
    if with_encoder:
        case["encoder"] = digits(model.encode(rows[0].ids).flatten(), 7)
    return {**case, "answers": answers, "usage": usage_of(rows)}


def must_differ(cases: list[dict]) -> None:
    """The same questions over other states: each question's probabilities move."""
    same = [case for case in cases if case["name"].startswith("three_types")]
    for index, first in enumerate(same):
        for second in same[index + 1 :]:
            for a, b in zip(first["rows"], second["rows"], strict=True):
                if np.abs(np.subtract(a["probabilities"], b["probabilities"])).max() < MIN_MOVE:
                    raise NearTie(f"{first['name']} and {second['name']}: {a['question']}")
    act = [answer["action"]["act_probability"] for case in cases for answer in case["answers"].values()]
    if max(act) - min(act) < 0.3 or sum(0.02 < value < 0.98 for value in act) < len(act) / 2:
        raise NearTie("act probabilities are all alike")


def distances(directory: Path, checkpoint: Checkpoint, model: Model, rows: list[Row]) -> dict[str, float]:
    """How far the option logits move when a setting is ignored (worst difference over largest logit)."""
    logits, result = torch.cat([model.forward(row)[0] for row in rows]), {}
    for name, changes in checkpoint.unlike.items():
        other = Model(directory, **changes)
        moved = torch.cat([other.forward(row)[0] for row in rows])
        result[name] = round(float((moved - logits).abs().max() / logits.abs().max()), 5)
        if result[name] < (0.0005 if name == "tanh gelu" else 0.01):
            raise ValueError(f"{checkpoint.name}: logits do not tell it from '{name}' ({result[name]})")
    return result


def exactness(directory: Path, model: Model, rows: list[Row]) -> float:
    """The largest distance of an option logit from that of a forward in float64."""
    exact = Model(directory).double()
    worst = max(float((exact.forward(row)[0] - model.forward(row)[0]).abs().max()) for row in rows)
    return float(f"{worst:.1g}")


def golden_of(directory: Path, checkpoint: Checkpoint) -> dict:
    model, upstream = Model(directory), Model(directory, "sdpa")
    texts = Texts(checkpoint.tokenizer, checkpoint.roles)
    requests = laya_cases.tiny_cases(checkpoint.roles["mask"], checkpoint.roles["sep"])
    if checkpoint.ascii_only:
        requests = {name: value for name, value in requests.items() if name not in laya_cases.NOT_ASCII}
    cases = [
        case_of(model, upstream, texts, name, state, questions, with_encoder=name == checkpoint.encoder_case)
        for name, (state, questions) in requests.items()
    ]
    must_differ(cases)
    state, questions, error = laya_cases.refused(model.agent["head_max_len"], model.agent["max_len"])
    try:
        build_rows(texts, state, questions, model.agent)
        raise ValueError(f"{checkpoint.name}: the row of too many options fits")
    except ValueError as caught:
        if str(caught) != error:
            raise
    rows = {name: build_rows(texts, *request, model.agent) for name, request in requests.items()}
    every = [row for part in rows.values() for row in part]
    return {
        "versions": versions(LIBRARIES),
        "why": checkpoint.why,
        "seed": checkpoint.seed,
        "ignored_setting_moves_logits_by": distances(
            directory, checkpoint, model, rows["three_types"] + rows["long_state"]
        ),
        "float64_moves_logits_by": exactness(directory, model, every),
        "cases": cases,
        "refused": [{"name": "too_many_options", "state": state, "questions": questions, "error": error}],
    }


def write_and_read(path: Path, content) -> None:
    write_json(path, content)
    if json.loads(path.read_text(encoding="utf-8")) != content:
        raise ValueError(f"{path} does not read back: write_json touched a text")


def make_checkpoint(out: Path, checkpoint: Checkpoint) -> None:
    directory = out / checkpoint.name
    while True:
        write_checkpoint(directory, checkpoint)
        size = sum(p.stat().st_size for p in directory.rglob("*") if p.is_file() and p.name != "golden.json")
        if size > MAX_CHECKPOINT_BYTES:
            raise ValueError(f"{checkpoint.name}: {size} bytes")
        try:
            content = golden_of(directory, checkpoint)
            break
        except NearTie:
            checkpoint.seed += 1  # deterministic: the first seed whose answers are worth comparing
    write_and_read(directory / "golden.json", content)
    print(f"laya/{checkpoint.name} (seed {checkpoint.seed}, {size} bytes)", flush=True)


# The row "category" of english/en/billing.
PUBLISHED_BILLING = """
    50281 22122 1953 27 6758 2285 943 6016 253 4579 275 2634 2915 65 32 50282 50284 33484 27 29838 1271 13 10762 13
    1275 41748 50284 7681 27 19775 13 562 1131 13 2899 569 50284 6224 27 20910 13 1471 375 13 747 21754 50284 643 27
    5293 273 253 1840 50282 9819 19091 1381 346 24900 21821 4179 995 346 2915 1381 346 42 369 6636 7019 323 45156
    7127 883 449 94 50282
"""
PUBLISHED_MARKERS = {"category": [16, 26, 36, 46], "urgency": [15, 22, 29], "is_spam": [14, 24]}
PUBLISHED_TOKENS = {"billing": 192, "queue": 83, "intent_1": 233, "intent_2": 239, "intent_3": 197}


def make_english_rows(out: Path) -> None:
    """Rows by the real English tokenizer, compared with the published ones."""
    source = Path(os.environ["DUET_SHARED_DATA"]) / "tokenizers" / "modernbert" / "tokenizer.json.xz"
    tokenizer = Tokenizer.from_str(lzma.decompress(source.read_bytes()).decode("utf-8"))
    texts = Texts(tokenizer, laya_tokenizers.ENGLISH_ROLES)
    lengths = {"max_len": 512, "head_max_len": 192}
    requests = []
    for name, (state, questions) in laya_cases.english_requests().items():
        rows = build_rows(texts, state, questions, lengths)
        usage = usage_of(rows)
        if usage["input_tokens"] != PUBLISHED_TOKENS.get(name, usage["input_tokens"]):
            raise ValueError(f"{name}: {usage['input_tokens']} tokens, published are {PUBLISHED_TOKENS[name]}")
        published = list(map(int, PUBLISHED_BILLING.split())), PUBLISHED_MARKERS
        if name == "billing" and (rows[0].ids, {row.question: row.markers for row in rows}) != published:
            raise ValueError("the published row of english/en/billing comes out otherwise")
        entries = [
            {
                "question": row.question,
                "type": row.type,
                "ids": row.ids,
                "markers": row.markers,
                "truncated": row.truncated,
            }
            for row in rows
        ]
        requests.append({"name": name, "state": state, "questions": questions, "rows": entries, "usage": usage})
    write_and_read(
        out / "english_rows.json",
        {"versions": versions(("tokenizers",)), "tokenizer": "modernbert", **lengths, "requests": requests},
    )
    print(f"laya/english_rows.json ({len(requests)} requests)", flush=True)


def make_json_texts(out: Path) -> None:
    pairs = [{"json": text, "text": json.dumps(json.loads(text), ensure_ascii=False)} for text in laya_cases.JSON_TEXTS]
    text = json.dumps(pairs, ensure_ascii=False, indent=1)  # write_json would touch the lists inside the texts
    (out / "json_texts.json").write_text(text + "\n", encoding="utf-8")


def make(out: Path) -> None:
    out = out / "laya"
    for checkpoint in checkpoints():
        make_checkpoint(out, checkpoint)
    make_english_rows(out)
    make_json_texts(out)


def main() -> None:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=here / "data")
    arguments = parser.parse_args()
    os.environ.setdefault("DUET_SHARED_DATA", str(here.parents[2] / "shared" / "data"))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make(arguments.out)


if __name__ == "__main__":
    main()
