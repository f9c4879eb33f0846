#!/usr/bin/env python3
"""Trains the demo pair: a tokenizer, a base of the Qwen2 architecture from scratch, and the adapters Laya and Kev.

    train.py --out DIR             everything, then the measured accuracy on the test tickets
    train.py --out DIR --dev       the same for tuning, measured on dev tickets: the test stays untouched
    train.py --out DIR --quick     minutes on a CPU, to see that all of it runs; the models are no good

Stages (prepare, base, laya, kev, evaluate) can be run alone with --stage; each reads what the one before it wrote.
"""
import argparse
import collections
import json
import math
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import time

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import evaluate
import make_tickets
from quantise import Bases

HERE = pathlib.Path(__file__).resolve().parent
VOCABULARY = 2304
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = (VOCABULARY - 3 + i for i in range(3))
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+")
CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
          "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SYSTEM = {"laya": "You are Laya. Name the team and the urgency.",
          "kev": "You are Kev. Weigh the ticket, then decide."}
LENGTH_LIMIT = 224  # tokens of prompt and answer together; longer samples are dropped
ADAPTERS = {"laya": dict(r=8, lora_alpha=16), "kev": dict(r=16, lora_alpha=32)}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def say(*words):
    print(*words, flush=True)


def prompt_of(role, text):
    return (f"<|im_start|>system\n{SYSTEM[role]}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
            f"<|im_start|>assistant\n")


# ---- prepare: text and tokenizer -------------------------------------------------------------------------------------


def base_document(rng, ticket):
    """A text for the base: tickets, notes of what they are about, and decisions without their tickets. How urgent a
    given ticket is stays untold: that is the adapters' job.
    """
    labels = ", ".join(label for label, _ in ticket["signals"]) or "none"
    asks = f"{ticket['topic']} open"
    if ticket["closed_topic"]:
        asks = f"{ticket['closed_topic']} closed, {asks}"
    kind = rng.random()
    if kind < 0.08:
        return f"{ticket['text']}\n"
    if kind < 0.16:
        return f"{make_tickets.kev_answer(ticket)}\n"
    if kind < 0.18:
        return f"{make_tickets.laya_answer(ticket)}\n"
    note = rng.choice((f"asks: {asks}\nsignals: {labels}", f"signals: {labels}\nasks: {asks}", f"asks: {asks}",
                       f"signals: {labels}", f"asks: {asks}\nteam: {ticket['team']}",
                       f"asks: {asks}\nsignals: {labels}\nteam: {ticket['team']}", f"team: {ticket['team']}"))
    if kind < 0.26:
        return f"{note}\nticket: {ticket['text']}\n"
    system = rng.choice(("You are a helpful assistant.", "You help the support desk.", SYSTEM["laya"], SYSTEM["kev"]))
    return (f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{ticket['text']}<|im_end|>\n"
            f"<|im_start|>assistant\n{note}<|im_end|>\n")


def make_chunk(job):
    seed, start, count = job
    phrases = make_tickets.Phrases("train")
    return [make_tickets.make_ticket(seed, i, "train", phrases) for i in range(start, start + count)]


def make_many(seed, count):
    jobs = [(seed, i, min(2000, count - i)) for i in range(0, count, 2000)]
    with multiprocessing.get_context("fork").Pool() as pool:
        return [ticket for chunk in pool.map(make_chunk, jobs) for ticket in chunk]


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS), min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_special_tokens(list(MARKS))
    if tokenizer.get_vocab_size() != VOCABULARY or tokenizer.token_to_id("<|im_end|>") != IM_END:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, {VOCABULARY} were expected: "
                         f"give it more text")
    return tokenizer


def save_tokenizer(tokenizer, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {str(VOCABULARY - 3 + i): dict(content=mark, lstrip=False, normalized=False, rstrip=False,
                                           single_word=False, special=True) for i, mark in enumerate(MARKS)}
    write_json(folder / "tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": list(MARKS[1:]),
        "bos_token": None, "chat_template": CHATML, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
        "errors": "replace", "model_max_length": 512, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def prepare(args):
    work = args.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    start = time.time()
    reading = make_many(args.seed * 10 + 1, args.documents)
    rng = random.Random(args.seed)
    documents = [base_document(rng, ticket) for ticket in reading]
    tokenizer = train_tokenizer(documents[:40000])
    save_tokenizer(tokenizer, args.out / "base")
    ids = [encoding.ids + [END_OF_TEXT] for encoding in tokenizer.encode_batch(documents)]
    stream = np.fromiter((i for row in ids for i in row), dtype=np.uint16)
    np.save(work / "base.npy", stream)
    say(f"prepare: {len(documents)} documents, {len(stream)} tokens for the base, {time.time() - start:.0f} s")

    tickets = make_many(args.seed * 10 + 2, max(args.laya_samples, args.kev_samples))
    for role, answer in (("laya", make_tickets.laya_answer), ("kev", make_tickets.kev_answer)):
        prompts = tokenizer.encode_batch([prompt_of(role, t["text"]) for t in tickets])
        answers = tokenizer.encode_batch([answer(t) + "<|im_end|>" for t in tickets])
        rows, lengths, starts, classes, dropped = [], [], [], [], 0
        for prompt, reply, ticket in zip(prompts, answers, tickets):
            row = prompt.ids + reply.ids
            if len(row) > LENGTH_LIMIT:
                dropped += 1
                continue
            rows.append(np.array(row + [END_OF_TEXT] * (LENGTH_LIMIT - len(row)), dtype=np.uint16))
            lengths.append(len(row))
            starts.append(len(prompt.ids))
            classes.append(ticket["team"] + "/" + ticket["urgency"])
        np.savez(work / f"{role}.npz", rows=np.stack(rows), lengths=np.array(lengths), starts=np.array(starts),
                 classes=np.array(classes))
        reply_lengths = np.array(lengths) - np.array(starts)
        say(f"prepare: {role}: {len(rows)} samples, {dropped} over {LENGTH_LIMIT} tokens dropped; prompt "
            f"{np.mean(starts):.0f} tokens on average, {np.max(starts)} at most; answer {reply_lengths.mean():.0f}, "
            f"{reply_lengths.max()} at most; {time.time() - start:.0f} s")


# ---- base: causal language model from scratch ------------------------------------------------------------------------


def rate_at(step, steps, peak, warm=100):
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def train_base(args):
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(args.seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, num_key_value_heads=args.hidden // 128, max_position_embeddings=512,
        rope_theta=10000.0, rms_norm_eps=1e-6, tie_word_embeddings=True, initializer_range=0.02,
        bos_token_id=None, eos_token_id=IM_END, pad_token_id=END_OF_TEXT, use_sliding_window=False)
    model = Qwen2ForCausalLM(config).to(args.device)
    say(f"base: {sum(p.numel() for p in model.parameters())} parameters")
    stream = torch.from_numpy(np.load(args.out / "work/base.npy").astype(np.int64)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0, betas=(0.9, 0.98), weight_decay=0.05,
                                  fused=args.device != "cpu")
    generator = torch.Generator(device=args.device).manual_seed(args.seed)
    reach = torch.arange(args.base_length, device=args.device)
    start = time.time()
    for step in range(args.base_steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, args.base_steps, args.base_rate)
        at = torch.randint(len(stream) - args.base_length, (args.base_batch, 1), device=args.device,
                           generator=generator)
        ids = stream[at + reach]
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device != "cpu"):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 500 == 0 or step == args.base_steps - 1:
            say(f"base: step {step} loss {loss.item():.4f} {time.time() - start:.0f} s")
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT,
                                               do_sample=False)
    model.save_pretrained(args.out / "base", max_shard_size="2800KB")


# ---- laya, kev: adapters on the frozen base --------------------------------------------------------------------------


def load_base(args):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(args.out / "base", dtype=torch.float32).to(args.device)


def balanced_order(classes, count, power, seed):
    """Sample numbers for `count` draws; a class is drawn in proportion to its share to the power of 1 - `power`."""
    names, inverse, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    weights = (sizes ** (1 - power) / sizes)[inverse]
    return np.random.default_rng(seed).choice(len(classes), size=count, p=weights / weights.sum())


def urgency_shares(classes):
    shares = collections.Counter(name.split("/")[1] for name in classes)
    return ", ".join(f"{k} {shares[k] / len(classes):.1%}" for k in make_tickets.phrases_signals.URGENCIES)


def train_adapter(args, role):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(args.seed + 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    steps, rate, count = ((args.laya_steps, args.laya_rate, args.laya_samples) if role == "laya" else
                          (args.kev_steps, args.kev_rate, args.kev_samples))
    data = {name: values[:count] for name, values in np.load(args.out / f"work/{role}.npz").items()}
    lengths, starts, classes = data["lengths"], data["starts"], data["classes"]
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=TARGETS, lora_dropout=args.dropout, bias="none",
                        **ADAPTERS[role])
    model = get_peft_model(load_base(args), config)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            torch.nn.init.normal_(parameter, std=0.02)
        elif "lora_B" in name:
            torch.nn.init.zeros_(parameter)
    model.train()
    bases = Bases(model)
    adapter = [p for p in model.parameters() if p.requires_grad]
    say(f"{role}: {sum(p.numel() for p in adapter)} trainable parameters")
    optimizer = torch.optim.AdamW(adapter, lr=0, betas=(0.9, 0.98), weight_decay=0.0, fused=args.device != "cpu")

    order = balanced_order(classes, steps * args.batch, args.balance, args.seed)
    say(f"{role}: urgency before re-balancing: {urgency_shares(classes)}; after: "
        f"{urgency_shares(classes[order])}")
    rows = torch.from_numpy(data["rows"].astype(np.int16)).to(args.device)
    # Samples of like length share a batch: sort within windows of 16 batches, then shuffle the batches of a window.
    mixer = np.random.default_rng(args.seed + 2)
    batches = []
    for window in np.split(order, range(16 * args.batch, len(order), 16 * args.batch)):
        parts = np.split(window[np.argsort(lengths[window], kind="stable")],
                         range(args.batch, len(window), args.batch))
        batches += [parts[i] for i in mixer.permutation(len(parts))]
    head = model.get_output_embeddings()
    decoder = model.get_base_model().model
    turn = ("nf4", "int8", "nf4", "fp32")
    start, running = time.time(), None
    for step, chosen in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, len(batches), rate)
        bases.use(turn[step % len(turn)])
        longest = int(lengths[chosen].max())
        ids = rows[torch.from_numpy(chosen).to(args.device), :longest].long()
        place = torch.arange(1, longest, device=args.device)
        first = torch.from_numpy(starts[chosen]).to(args.device)[:, None]
        last = torch.from_numpy(lengths[chosen]).to(args.device)[:, None]
        answered = (place >= first) & (place < last)  # the loss is on the answer alone
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device != "cpu"):
            hidden = decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            logits = head(hidden[answered])
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:][answered])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(adapter, 1.0)
        optimizer.step()
        running = loss.detach() if running is None else running * 0.98 + loss.detach() * 0.02
        if step % 200 == 0 or step == len(batches) - 1:
            if not math.isfinite(running.item()):
                raise SystemExit(f"{role}: the loss is not finite at step {step}")
            say(f"{role}: step {step} loss {running.item():.4f} gradient norm {norm.item():.3f} "
                f"{time.time() - start:.0f} s")
    bases.use("fp32")
    for parameter in adapter:
        parameter.data = parameter.data.half()
    model.peft_config["default"].base_model_name_or_path = "base"
    model.peft_config["default"].target_modules = sorted(TARGETS)
    model.save_pretrained(args.out / role, save_embedding_layers=False)
    (args.out / role / "README.md").unlink(missing_ok=True)


# ---- the whole run ---------------------------------------------------------------------------------------------------


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--stage", default="all", choices=("all", "prepare", "base", "laya", "kev", "evaluate"))
    parser.add_argument("--dev", action="store_true", help="measure on dev tickets, not on the test")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--documents", type=int, default=300000, help="texts for the base")
    parser.add_argument("--laya-samples", type=int, default=4000, help="tickets Laya learns from, before re-balancing")
    parser.add_argument("--kev-samples", type=int, default=48000, help="the same for Kev")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--ffn", type=int, default=704)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--base-steps", type=int, default=3500)
    parser.add_argument("--base-batch", type=int, default=128)
    parser.add_argument("--base-length", type=int, default=257)
    parser.add_argument("--base-rate", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--laya-steps", type=int, default=250)
    parser.add_argument("--kev-steps", type=int, default=1500)
    parser.add_argument("--laya-rate", type=float, default=2e-3)
    parser.add_argument("--kev-rate", type=float, default=2e-3)
    parser.add_argument("--balance", type=float, default=0.5, help="0: as generated, 1: all classes equal")
    parser.add_argument("--dropout", type=float, default=0.05)
    args = parser.parse_args(argv)
    if args.quick:
        args.documents, args.laya_samples, args.kev_samples = 6000, 600, 600
        args.base_steps, args.base_batch, args.laya_steps, args.kev_steps, args.batch = 20, 4, 4, 4, 4
    return args


def main(argv):
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stage in ("all", "prepare"):
        prepare(args)
    if args.stage in ("all", "base"):
        train_base(args)
    if args.stage == "all":  # the two adapters do not need each other: side by side
        jobs = [subprocess.Popen([sys.executable, __file__, *argv, "--stage", role]) for role in ADAPTERS]
        if any([job.wait() for job in jobs]):
            raise SystemExit("training an adapter failed; its message is above")
    elif args.stage in ADAPTERS:
        train_adapter(args, args.stage)
    if args.stage in ("all", "evaluate"):
        evaluate.report(args, load_base, prompt_of)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    main(sys.argv[1:])
