"""Tokenizers of the tiny Kev checkpoints: byte-level BPE as Qwen2.5, Qwen3 and Qwen3.5 have it."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from common import write_json
from laya_tokenizers import tokenizer_json, trained
from tiny_tokenizers import CORPUS, QWEN_SPLIT

QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKERS = {  # role -> the token of the base that plays it
    "state": "<|fim_prefix|>",
    "question": "<|fim_middle|>",
    "option": "<|box_start|>",
    "option_end": "<|box_end|>",
    "decide": "<|fim_suffix|>",
}
PAD = "<|endoftext|>"
ADDED = [  # in the order of the hub's ids; True: special
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<think>", False),
    ("</think>", False),
]
THINK = ("<think>", "</think>")
MORE = [
    "Which team should handle this? Exchanges, refunds, wrong or damaged items.",
    "Delivery status, delays, lost packages.",
    "Does this need urgent human attention? How frustrated is the customer? Calm, frustrated, very angry.",
    "Shoes arrived two weeks late and in the wrong size. Also I see two charges on my card.",
    "subject: Refund\norder:\n  id: 4411\n  items:\n    - boots\n    - socks\n  paid: True\nnotes:\n  - by: agent",
    "Which emotion does the writer express? None of these options describes the answer: joy, fear, anger, surprise.",
    "On day 3 the page said that parcel 4418 was on its way, and nothing came.",
]


def added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, special=special, normalized=False)


def byte_level(size: int, split: str = QWEN_SPLIT) -> Tokenizer:
    """`size` ids, the added tokens behind the pieces."""
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = trained(CORPUS + MORE, splitter, alphabet, size - len(ADDED), normalizers.NFC())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(pieces)}, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    for text, special in ADDED:
        tokenizer.add_tokens([added(text, special)])
    if tokenizer.get_vocab_size() != size:
        raise ValueError("the tokenizer has the wrong size")
    return tokenizer


def config_of(tokenizer: Tokenizer) -> dict:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(text)): {"content": text, **flags, "special": special} for text, special in ADDED
        },
        "additional_special_tokens": [text for text, special in ADDED if special and text != PAD],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": PAD,
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": PAD,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def without_think(text: str) -> str:
    """A tokenizer.json that leaves the last tokens to tokenizer_config.json."""
    content = json.loads(text)
    content["added_tokens"] = [entry for entry in content["added_tokens"] if entry["content"] not in THINK]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def write_base(directory: Path, tokenizer: Tokenizer, think_in_config: bool) -> None:
    text = tokenizer_json(tokenizer, as_on_the_hub=False)
    text = without_think(text) if think_in_config else text
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    write_json(directory / "tokenizer_config.json", config_of(tokenizer))


def write_beside(directory: Path, tokenizer: Tokenizer) -> None:
    """The copy in the adapter's folder, in the spelling of newer libraries."""
    (directory / "tokenizer.json").write_text(tokenizer_json(tokenizer, as_on_the_hub=True) + "\n", encoding="utf-8")
    write_json(directory / "tokenizer_config.json", config_of(tokenizer))


def write_older_files(directory: Path, tokenizer: Tokenizer) -> None:
    """vocab.json, merges.txt, added_tokens.json and special_tokens_map.json."""
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = json.dumps(model["vocab"], ensure_ascii=False, separators=(",", ":"))
    (directory / "vocab.json").write_text(vocabulary, encoding="utf-8")
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    ids = {text: tokenizer.token_to_id(text) for text, _ in ADDED}
    write_json(directory / "added_tokens.json", ids)
    write_json(
        directory / "special_tokens_map.json",
        {
            "additional_special_tokens": [text for text, special in ADDED if special and text != PAD],
            "eos_token": PAD,
            "pad_token": PAD,
        },
    )
