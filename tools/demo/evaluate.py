"""Measures the pair with the reference stack: accuracy of Laya, of Kev and routed, at three types of base weights."""
import json
import pathlib
import re
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import make_tickets
from quantise import Bases

HERE = pathlib.Path(__file__).resolve().parent
DECISION = re.compile(r"team: (\w+)(?: \| |\n)urgency: ([^\n]+)")
HEDGE = "needs more information"
THRESHOLD = 0.7
MEASURES = ("mean", "min", "first")


def tickets_for(args):
    """The stored test tickets, or dev tickets when tuning; and new tickets made of phrases seen in training."""
    count = 20 if args.quick else 400
    seen = make_tickets.Phrases("train")
    known = [make_tickets.make_ticket(99, i, "train", seen) for i in range(count)]
    if not args.dev:
        lines = (HERE / "tickets_test.jsonl").read_text().splitlines()
        return {"test": [json.loads(line) for line in lines[:count]], "seen phrases": known}
    phrases = make_tickets.Phrases("dev")
    return {"dev": [make_tickets.make_ticket(5, i, "dev", phrases) for i in range(count)], "seen phrases": known}


@torch.no_grad()
def answer(model, tokenizer, prompts, limit, device):
    """Greedy answers, all prompts at once: (texts, [per-token probabilities])"""
    pad, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    rows = [encoding.ids for encoding in tokenizer.encode_batch(prompts)]
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=False,
                         output_logits=True, return_dict_in_generate=True, pad_token_id=pad, eos_token_id=end)
    tokens = out.sequences[:, longest:]
    logs = torch.stack([step.float().log_softmax(-1) for step in out.logits], dim=1)
    chosen = logs.gather(-1, tokens[..., None]).squeeze(-1).exp().cpu().numpy()
    texts, probabilities = [], []
    for row, values in zip(tokens.tolist(), chosen):
        count = row.index(end) + 1 if end in row else len(row)
        texts.append(tokenizer.decode(row[:count], skip_special_tokens=True))
        probabilities.append(values[:count])
    return texts, probabilities


def decision(text):
    match = DECISION.search(text)
    return match.groups() if match else (None, None)


def confidence(probabilities, measure):
    if measure == "mean":
        return float(np.exp(np.mean(np.log(np.maximum(probabilities, 1e-30)))))
    return float(np.min(probabilities)) if measure == "min" else float(probabilities[0])


def ranking(scores, right):
    """The chance that a right answer has the higher confidence than a wrong one (area under the ROC curve)."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    for value in np.unique(scores):
        ranks[scores == value] = ranks[scores == value].mean()
    good = right.sum()
    return (ranks[right].sum() - good * (good + 1) / 2) / max(1, good * (len(right) - good))


def calibration_error(scores, right):
    """Mean distance between confidence and accuracy over ten bins."""
    bins = np.minimum((scores * 10).astype(int), 9)
    return sum(abs(scores[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean()
               for b in range(10) if (bins == b).any())


def measure(args, kind, models, tokenizer, tickets, prompt_of):
    truth = [(t["team"], t["urgency"]) for t in tickets]
    hard = np.array([t["hard"] for t in tickets])
    answers = {}
    for role, limit in (("laya", 16), ("kev", 100)):
        models[role][1].use(kind)
        start = time.time()
        texts, probabilities = answer(models[role][0], tokenizer, [prompt_of(role, t["text"]) for t in tickets], limit,
                                      args.device)
        decided = [decision(text) for text in texts]
        right = np.array([a == b for a, b in zip(decided, truth)])
        team = np.mean([a[0] == b[0] for a, b in zip(decided, truth)])
        urgency = np.mean([a[1] == b[1] for a, b in zip(decided, truth)])
        lengths = [len(p) for p in probabilities]
        print(f"{kind}: {role}: both right {right.mean():.1%} (easy {right[~hard].mean():.1%}, "
              f"hard {right[hard].mean():.1%}), team {team:.1%}, urgency {urgency:.1%}; "
              f"tokens {np.mean(lengths):.1f} on average, {max(lengths)} at most; "
              f"{time.time() - start:.0f} s", flush=True)
        answers[role] = (texts, probabilities, decided, right)
    laya, kev = answers["laya"], answers["kev"]
    hedged = np.array([HEDGE in text for text in laya[0]])
    right = laya[3]
    print(f"{kind}: laya hedges on {hedged.mean():.1%}; when she does not: {right[~hedged].mean():.1%} right",
          flush=True)
    for name in MEASURES:
        scores = np.array([confidence(p, name) for p in laya[1]])
        line = f"{kind}: confidence {name}: ranking {ranking(scores[~hedged], right[~hedged]):.3f}, " \
               f"calibration error {calibration_error(scores[~hedged], right[~hedged]):.3f}; routed"
        for threshold in (0.5, 0.6, THRESHOLD, 0.8, 0.9):
            up = hedged | (scores < threshold)
            routed = np.where(up, kev[3], laya[3])
            line += f" at {threshold}: {routed.mean():.1%} ({up.mean():.0%} to Kev)"
        print(line, flush=True)
    return answers


def report(args, load_base, prompt_of):
    from peft import PeftModel
    tokenizer = Tokenizer.from_file(str(args.out / "base/tokenizer.json"))
    sets = tickets_for(args)
    models = {}
    for role in ("laya", "kev"):
        model = PeftModel.from_pretrained(load_base(args), args.out / role).float().eval()
        models[role] = (model, Bases(model))
    with open(args.out / "answers.jsonl", "w") as file:
        for name, tickets in sets.items():
            print(f"evaluate: {name}: {len(tickets)} tickets, {sum(t['hard'] for t in tickets)} of them hard",
                  flush=True)
            for kind in ("fp32",) if name == "seen phrases" else ("fp32", "int8", "nf4"):
                answers = measure(args, kind, models, tokenizer, tickets, prompt_of)
                for i, ticket in enumerate(tickets):
                    file.write(json.dumps({
                        "set": name, "base": kind, "id": ticket["id"], "text": ticket["text"],
                        "truth": [ticket["team"], ticket["urgency"]], "marks": ticket.get("marks"),
                        "laya": answers["laya"][0][i], "laya_min": round(confidence(answers["laya"][1][i], "min"), 4),
                        "kev": answers["kev"][0][i],
                        "right": [bool(answers[role][3][i]) for role in ("laya", "kev")]}, ensure_ascii=False) + "\n")
