"""Tokenizers of the tiny Laya checkpoints: byte-level BPE as ModernBERT has it, and a Metaspace BPE with byte fallback
and the special ids of the multilingual checkpoint."""

import json
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiny_tokenizers import CORPUS

MORE = [
    "choice question: which team should handle the email in the body? billing, technical, sales or other",
    "score question: how urgent is the request? level 0: no time pressure, level 1: soon, level 2: blocking",
    "noul question: is this email spam? false: no, the statement does not hold, true: yes, the statement holds",
    '{"subject": "Duplicate charge", "body": "I was charged twice for invoice 4411.", "total": 1.0, "paid": false}',
    '[{"role": "user", "content": "Where is my order?"}, {"role": "agent", "content": "It left us on Monday."}]',
    "The statement holds when the customer asks for money back; it does not hold when nothing was paid.",
    "Please answer before the deadline, the account of the team is locked and nobody can work on the ticket.",
    "invoices, payments, refunds, bugs, outages, integrations, pricing, demos, new purchases, none of the above",
]

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
SPACE_RUNS = [" " * count for count in (4, 3, 2)]
ENGLISH_ROLES = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"}
MULTI_ROLES = {"cls": "<bos>", "sep": "<eos>", "pad": "<pad>", "mask": "<mask>", "unk": "<unk>"}


@dataclass
class Texts:
    """A tokenizer with the texts of its special tokens, as tokenizer_config.json names them."""

    tokenizer: Tokenizer
    roles: dict[str, str]

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def special(self, role: str) -> int:
        return self.tokenizer.token_to_id(self.roles[role])


def trained(lines, pre_tokenizer, alphabet: list[str], size: int, normalizer=None) -> tuple[list[str], list[tuple]]:
    """Pieces in the order of their ids, and merges, of a BPE that knows nothing beyond this alphabet."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    vocabulary = tokenizer.get_vocab()
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.get), merges


def framed(cls: str, sep: str, tokenizer: Tokenizer):
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in (cls, sep)],
    )


def byte_level(size: int, ascii_only: bool = False) -> Tokenizer:
    """`size` ids in ModernBERT's order: two added tokens before the bytes, runs of spaces, specials and unused ones
    behind. With `ascii_only` it has no pieces for other bytes and must not meet any."""
    after = [*SPACE_RUNS, "<|endoftext|>", *SPECIAL, "[unused0]", "[unused1]"]
    before = ["|||IP_ADDRESS|||", "<|padding|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    lines = CORPUS + MORE
    if ascii_only:
        alphabet = sorted({chr(code) for code in range(33, 127)} | {"Ġ", "Ċ"})
        lines = [line for line in lines if line.isascii()]
    pieces, merges = trained(
        lines,
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        alphabet,
        size - len(before) - len(after),
        normalizers.NFC(),
    )
    vocabulary = {text: index for index, text in enumerate(before + pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    for text in before + after:
        if text in SPECIAL or text.startswith("<|"):
            tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False, lstrip=text == "[MASK]")])
        else:
            tokenizer.add_tokens([AddedToken(text, special=False, normalized=True)])
    tokenizer.post_processor = framed("[CLS]", "[SEP]", tokenizer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError("the byte-level tokenizer has the wrong size")
    return tokenizer


def metaspace(size: int) -> Tokenizer:
    """`size` ids: pad 0, sep 1, cls 2, unk 3, mask 4, then other added tokens, 255 bytes (a tab is no byte), pieces."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    added = ["<2mass>", "[@BOS@]", "<unused0>", "\n", "\n\n", "\t", "\t\t", "▁▁", "▁▁▁"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256) if byte != 9]
    fixed = special + added + bytes_
    normalizer = normalizers.Replace(" ", "▁")
    pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    letters = "▁ABCDEFIMPTWabcdefghiklmnopqrstuvwxyz0123456789.,:;?!'\"{}[]éü发票"
    alphabet = sorted(set(letters))  # everything else falls back to bytes
    pieces, merges = trained(
        CORPUS + MORE,
        pre_tokenizers.Sequence([pre_tokenizer, pre_tokenizers.Digits(individual_digits=True)]),
        alphabet,
        size - len(fixed),
        normalizer,
    )
    vocabulary = {text: index for index, text in enumerate(fixed + pieces)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer.post_processor = framed("<bos>", "<eos>", tokenizer)
    if tokenizer.get_vocab_size() != size:
        raise ValueError("the Metaspace tokenizer has the wrong size")
    return tokenizer


def tokenizer_json(tokenizer: Tokenizer, as_on_the_hub: bool) -> str:
    """Indented with merges as pairs, or the older spelling: on one line with merges as strings."""
    content = json.loads(tokenizer.to_str())
    if as_on_the_hub:
        return json.dumps(content, ensure_ascii=False, indent=2)
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def tokenizer_config(roles: dict[str, str], max_length: int) -> dict:
    config = {
        "backend": "tokenizers",
        "clean_up_tokenization_spaces": False,
        "is_local": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
        "tokenizer_class": "TokenizersBackend",
        **{role + "_token": text for role, text in roles.items()},
    }
    if roles is MULTI_ROLES:
        config.update(bos_token="<bos>", eos_token="<eos>", extra_special_tokens=["<2mass>", "[@BOS@]"])
    return dict(sorted(config.items()))
