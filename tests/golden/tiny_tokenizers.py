"""Two tokenizers of 320 ids, trained on the lines below: byte-level BPE as Qwen has it, and SentencePiece-style BPE
with byte fallback as Llama 2 has it."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 320

CORPUS = [
    "My invoice of March was charged twice and nobody answers the ticket.",
    "The second charge is still there, please refund it today.",
    "I cannot log in since the update: the page says that my password is wrong.",
    "Please tell me where my parcel is, the tracking page has not changed for 9 days.",
    "The app crashes when I open the settings page on my phone.",
    "How do I change the address of my account before the next invoice?",
    "发票被收了两次,请退款。登录不了,密码错误。",
]

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 317, 318, 319


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(QWEN_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in QWEN_SPECIAL])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError("the byte-level tokenizer has the wrong size")
    return tokenizer


def sentence_piece() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>"]
    fixed = special + [f"<0x{byte:02X}>" for byte in range(256)]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    alphabet = ["▁"] + [chr(code) for code in range(ord("a"), ord("z") + 1)]  # everything else falls back to bytes
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(fixed),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]

    vocabulary = {text: index for index, text in enumerate(fixed + [text for text, _ in pieces])}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError("the SentencePiece-style tokenizer has the wrong size")
    return tokenizer


CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_config() -> dict:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }


def sentence_piece_config() -> dict:
    return {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "legacy": False,
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
    }
