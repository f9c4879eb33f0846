"""Golden data for the tokenizer tests, from the reference stack.

    python tests/golden/make_tokenizer_golden.py --shared-data ../shared/data

writes tests/golden/data/tokenizers/{toys,real,chats,unicode}.json. Needs tokenizers, transformers and jinja2; the
versions used stand in each file. Everything is seeded: the same versions give the same bytes.
"""

import argparse
import itertools
import json
import lzma
import pathlib
import random
import unicodedata

import jinja2
import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils.chat_template_utils import render_jinja_template

from chat_template_texts import TEMPLATES

SEED = 20260101

MIXED = [
    "", " ", "  ", "\n", "\t", "a", " a", "a ", "Hello world", "Hello  world ", "  leading and trailing  ", "\n\nline\n\n\nline\r\n",
    "I'm you're we've they'll he'd it's CAN'T 'ſ 'S", "3.14159 and 1,000,000 or 2024-06-01", "x1y22z333 ４５６ ½ Ⅳ ٣",
    "今天天气不错，我们去公园玩吧。不确定，可能需要更多信息", "这很简单", "안녕하세요 세계 각각", "Cụ thể, bạn sẽ tham gia một nhóm",
    "Việt Nam độc lập", "こんにちは、世界！ガギグ ｶﾞｷﾞ", "Привет, мир! Ёлка", "مرحبا بالعالم", "नमस्ते दुनिया क़", "สวัสดีชาวโลก ำ", "שלום עולם",
    "👨‍👩‍👧‍👦 family", "🌍🌎🌏", "👍🏽 ok", "🇩🇪🇫🇷", "e\u0301 \u00e9", "\u1100\u1161\u11a8 \uac01", "a\u0302\u0323 a\u0323\u0302 \u1ead",
    "\u212b \u00c5", "\u0958 \u0915\u093c", "\ufb01 fi", "ﬃ Ⅷ ㎏ ﷺ", "İstanbul ǅ ΑΣ ß", "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }", "{\"key\": [1, 2.5, null], \"o\": {\"p\": \"q\"}}", "https://example.org/a_b?c=d&e=f#g",
    "user@example.org", "snake_case CamelCase kebab-case", "....!!!???", "--- === ___ ***", "\u00a0nbsp\u00a0\u2003em\u3000wide\u1680\u180e|\u0085|",
    "zero\u200bwidth\u200djoin\u200cno", "\u200e\u202a bidi", "tab\tseparated\tvalues", "\x00\x01 control \x7f", "\ufeffbom", "\ufffd replaced",
    "a" * 40, "ab" * 20, " " * 17 + "x", "_" * 33, "。" * 9, "\n" * 7, "的" * 21, "😀" * 8, "▁under ▁▁ bar▁", "Ġ Ċ Ã ©", "<0x41> <0xE4>", "\U0001f130\u24b6 x_y·z",
]

LATIN = "the quick brown fox jumps over the lazy dog. It's a dog's life; we're not sure, they'll see 42 times in 2024! Hello hello world."


def versions():
    return {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__, "jinja2": jinja2.__version__, "seed": SEED}


def train_bases():
    """Small vocabularies that every toy starts from."""
    corpus = [LATIN, LATIN.upper(), *MIXED] * 4
    by_bytes = Tokenizer(models.BPE())
    by_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_bytes.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.train_from_iterator([LATIN, LATIN.lower(), "今天天气 各各 hello <m> [x]"] * 4, trainers.BpeTrainer(vocab_size=140, show_progress=False))

    bases = {"bytes": json.loads(by_bytes.to_str())}
    spm = json.loads(pieces.to_str())
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tokens += sorted(spm["model"]["vocab"], key=spm["model"]["vocab"].get)
    spm["model"]["vocab"] = {t: i for i, t in enumerate(tokens)}
    spm["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    spm["pre_tokenizer"] = None
    bases["pieces"] = spm
    plain = json.loads(pieces.to_str())
    plain["model"]["vocab"] = {t: i for i, t in enumerate(["[UNK]"] + sorted(plain["model"]["vocab"], key=plain["model"]["vocab"].get))}
    plain["model"]["unk_token"] = "[UNK]"
    plain["pre_tokenizer"] = None
    bases["letters"] = plain
    return bases


def added(id, content, **flags):
    token = dict(id=id, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    token.update(flags)
    return token


def merge_patch(base, patch):
    result = json.loads(json.dumps(base))
    for key, value in patch.items():
        if key == "model":
            result["model"].update(value)
        else:
            result[key] = value
    return result


def component_toys(bases):
    """(name, base, patch): every component with its options."""
    split = lambda pattern, behavior, invert=False: {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    byte_level = lambda prefix=False, regex=True: {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}
    sequence = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
    qwen = {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}
    llama3 = {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}
    deepseek = {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}
    o200k = {"Regex": "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}
    decode_bytes = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    replace_space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    llama_normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace_space]}
    llama_decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}

    for prefix, regex in itertools.product([False, True], repeat=2):
        yield f"byte level, prefix {prefix}, regex {regex}", "bytes", {"pre_tokenizer": byte_level(prefix, regex), "decoder": decode_bytes}
    for name, pattern in (("qwen", qwen), ("llama3", llama3), ("deepseek", deepseek), ("o200k", o200k)):
        yield f"split {name}", "bytes", {"pre_tokenizer": sequence(split(pattern, "Isolated"), byte_level(False, False)), "decoder": decode_bytes, "normalizer": {"type": "NFC"}}
    yield "ignore merges", "bytes", {"pre_tokenizer": byte_level(), "decoder": decode_bytes, "model": {"ignore_merges": True}}
    yield "smollm", "bytes", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level()), "decoder": decode_bytes}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"split spaces, {behavior}, invert {invert}", "bytes", {"pre_tokenizer": sequence(split({"Regex": "\\s"}, behavior, invert), byte_level(False, False))}
        yield f"split string, {behavior}", "bytes", {"pre_tokenizer": sequence(split({"String": "o"}, behavior), byte_level(False, False))}
        yield f"punctuation, {behavior}", "bytes", {"pre_tokenizer": sequence({"type": "Punctuation", "behavior": behavior}, byte_level(False, False))}
    yield "digits together", "bytes", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level(False, False))}
    yield "whitespace", "bytes", {"pre_tokenizer": sequence({"type": "Whitespace"}, byte_level(False, False))}
    yield "whitespace split", "bytes", {"pre_tokenizer": sequence({"type": "WhitespaceSplit"}, byte_level(False, False))}
    for pattern in ("\\w+|\\W", "\\d+", "\\b", "[^\\S\\n]+", "(?<=a)b|\\p{Han}+", "x*", "\\p{^L}", "(?m:.)", ".", "^.|.$", "\\h+", "[[:alpha:]]|a{,2}b"):
        try:
            Tokenizer.from_str(json.dumps(merge_patch(bases["bytes"], {"pre_tokenizer": split({"Regex": pattern}, "Isolated")})))
        except Exception:
            continue
        if "[[:" in pattern:
            continue  # refused by Duet
        yield f"split on {pattern}", "bytes", {"pre_tokenizer": sequence(split({"Regex": pattern}, "Isolated"), byte_level(False, False))}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        yield f"normalizer {form}", "bytes", {"normalizer": {"type": form}, "pre_tokenizer": byte_level(), "decoder": decode_bytes}
    yield "lower accents", "bytes", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]}, "pre_tokenizer": byte_level()}
    for left, right in itertools.product([False, True], repeat=2):
        yield f"strip {left} {right}", "bytes", {"normalizer": {"type": "Strip", "strip_left": left, "strip_right": right}, "pre_tokenizer": byte_level()}
    yield "replace by regex", "bytes", {"normalizer": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, "pre_tokenizer": byte_level()}
    yield "byte level normalizer", "bytes", {"normalizer": {"type": "ByteLevel"}}

    yield "llama", "pieces", {"normalizer": llama_normalizer, "decoder": llama_decoder}
    yield "gemma", "pieces", {"normalizer": replace_space, "pre_tokenizer": split({"String": " "}, "MergedWithPrevious"), "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}}
    for scheme, cut in itertools.product(("always", "first", "never"), (False, True)):
        meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
        yield f"metaspace {scheme}, split {cut}", "pieces", {"pre_tokenizer": meta, "decoder": meta, "added_tokens": [added(2, "</s>", special=True)]}
    yield "bytes and unknown", "pieces", {"model": {"byte_fallback": True, "vocab": {t: i for t, i in bases["pieces"]["model"]["vocab"].items() if t not in ("<0xE4>", "<0xF0>")}}, "normalizer": llama_normalizer}
    for fuse, unknown in itertools.product([False, True], [None, "[UNK]"]):
        yield f"unknown {unknown}, fused {fuse}", "letters", {"model": {"fuse_unk": fuse, "unk_token": unknown}, "normalizer": replace_space}
    strip = lambda start, stop: {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "▁", "start": start, "stop": stop}]}
    yield "strip decoder", "letters", {"normalizer": replace_space, "decoder": strip(2, 1)}
    yield "strip tokens", "letters", {"normalizer": replace_space, "decoder": {"type": "Strip", "content": "▁", "start": 1, "stop": 1}}
    yield "replace decoder", "letters", {"normalizer": replace_space, "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "lo▁"}, "content": "LO "}]}}
    yield "replace by regex decoder", "letters", {"normalizer": replace_space, "decoder": {"type": "Replace", "pattern": {"Regex": "▁+|l"}, "content": "·"}}
    affixes = {"vocab": {"a": 0, "b": 1, "##a": 2, "##b": 3, "ab": 4, "##ab": 5, "a</w>": 6, "##b</w>": 7, "ab</w>": 8, "b</w>": 9, "##a</w>": 10},
               "merges": [["a", "##b"], ["a", "##b</w>"], ["##a", "##b"]], "unk_token": None, "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}
    yield "prefix and suffix", "letters", {"model": affixes, "pre_tokenizer": {"type": "WhitespaceSplit"}}

    unk, cls, sep = 300, 301, 302
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[C]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[S]", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"[C]": {"id": "[C]", "ids": [cls, unk], "tokens": ["a", "b"]}, "[S]": {"id": "[S]", "ids": [sep], "tokens": ["c"]}}}
    byte_processor = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    yield "template", "bytes", {"pre_tokenizer": byte_level(), "post_processor": template}
    yield "sequence of processors", "bytes", {"pre_tokenizer": byte_level(), "post_processor": {"type": "Sequence", "processors": [byte_processor, template]}}
    for kind in ("BertProcessing", "RobertaProcessing"):
        extra = {"trim_offsets": True, "add_prefix_space": True} if kind[0] == "R" else {}
        yield kind, "bytes", {"pre_tokenizer": byte_level(), "post_processor": {"type": kind, "sep": ["x", sep], "cls": ["y", cls], **extra}}


def added_token_toys(bases):
    """Every combination of flags, as a special token beside plain ones, some the beginning of others."""
    size = len(bases["bytes"]["model"]["vocab"])
    for lstrip, rstrip, single_word, normalized in itertools.product([False, True], repeat=4):
        flags = dict(lstrip=lstrip, rstrip=rstrip, single_word=single_word, normalized=normalized)
        for normalizer in ("NFC", "Lowercase"):
            tokens = [added(size, "<M>", special=True, **flags), added(size + 1, "<M>x", **flags), added(bases["bytes"]["model"]["vocab"]["é"], "é", **flags), added(size + 2, "e\u0301a", **flags),
                      added(size + 3, "word"), added(size + 4, "wordy", special=True)]
            yield (f"added {normalizer} {flags}", "bytes",
                   {"normalizer": {"type": normalizer}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, "added_tokens": tokens})
    for normalized in (False, True):
        yield (f"added llama, normalized {normalized}", "pieces",
               {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
                "added_tokens": [added(1, "<s>", special=True, normalized=normalized), added(2, "</s>", special=True, normalized=normalized, rstrip=True)]})


def added_texts(rng):
    parts = ["<M>", "<M>x", "<m>", "é", "e\u0301", "e\u0301a", "word", "wordy", "words", "a", "Z", "1", ".", " ", "   ", "\t", "\n", "\u00a0", "_", "<s>", "</s>", "<M", "字"]
    texts = ["<M>", " <M>", "<M> ", "  <M>  ", "a<M>b", "a <M> b", "\t<M>\n", "<M><M>", "<M> <M>", "<M>x", "<M>xy", "wordy", "word y", "swordy", "<s>a</s>  b", " <s> a"]
    while len(texts) < 44:
        texts.append("".join(rng.choice(parts) for _ in range(rng.randint(2, 7))))
    return texts


def whole_bytes(tokenizer, ids):
    """Whether every run of byte tokens is valid UTF-8; Duet keeps the valid characters of a broken run, the reference none."""
    run = b""
    for id in [*ids, -1]:
        token = tokenizer.id_to_token(id) if id >= 0 else ""
        if token and len(token) == 6 and token.startswith("<0x"):
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return False
        run = b""
    return True


def changed_by_normalizing(tokenizer):
    """Added tokens that the reference decodes to their normalized content, special or not; Duet decodes what was written
    and leaves special ones out."""
    if tokenizer.normalizer is None:
        return set()
    return {id for id, token in tokenizer.get_added_tokens_decoder().items()
            if token.normalized and tokenizer.normalizer.normalize_str(token.content) != token.content}


def cases_of(tokenizer, texts, shared, rng, with_plain):
    cases = []
    for text in texts:
        index = shared.setdefault(text, len(shared))
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = [index, ids]
        if with_plain:
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            case.append(plain if plain != ids else None)
        cases.append(case)
    tokenizer.encode_special_tokens = False
    decoded, changed = [], changed_by_normalizing(tokenizer)
    known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    runs = [tokenizer.encode(t, add_special_tokens=False).ids for t in rng.sample(texts, min(6, len(texts)))]
    runs += [[rng.choice(known) for _ in range(rng.randint(1, 9))] for _ in range(6)]
    for ids in runs:
        if whole_bytes(tokenizer, ids) and not changed.intersection(ids):
            try:
                text, skipped = tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # the reference's Strip decoder dies of short tokens
                    raise
                continue
            decoded.append([ids, text] if text == skipped else [ids, text, skipped])
    return cases, decoded


def make_toys():
    bases = train_bases()
    rng = random.Random(SEED)
    shared, toys = {}, []
    for name, base, patch in [*component_toys(bases), *added_token_toys(bases)]:
        tokenizer = Tokenizer.from_str(json.dumps(merge_patch(bases[base], patch)))
        is_added = name.startswith(("added", "metaspace"))
        texts = added_texts(random.Random(SEED)) if is_added else MIXED[:12] + rng.sample(MIXED[12:], 22)
        cases, decoded = cases_of(tokenizer, texts, shared, rng, is_added)
        toy = {"name": name, "base": base, "patch": patch, "cases": cases, "decoded": decoded}
        if "post_processor" in patch:
            toy["with_special"] = [[t, tokenizer.encode(t).ids] for t in ("", "a", "Hello world")]
        toys.append(toy)
    return {"versions": versions(), "bases": bases, "texts": list(shared), "toys": toys}


def make_real(shared_data):
    rng = random.Random(SEED)
    texts = [t for t in MIXED if len(t) > 1]
    words = " ".join(MIXED).split(" ")
    texts += ["".join(rng.choice([" ", "", "\n", "  "]) + rng.choice(words) for _ in range(12)) for _ in range(30)]
    result = {"versions": versions(), "texts": texts, "ids": {}}
    for name in ("qwen3", "gpt2", "llama2", "modernbert"):
        tokenizer = Tokenizer.from_str(lzma.open(shared_data / "tokenizers" / name / "tokenizer.json.xz").read().decode())
        result["ids"][name] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    return result


CONVERSATIONS = [
    [("user", "Hello")],
    [("user", "  spaced \n")],
    [("system", "Be brief."), ("user", "Hello")],
    [("user", "One"), ("assistant", "Two"), ("user", "Three")],
    [("system", " You judge. "), ("user", "One"), ("assistant", " Two "), ("user", "Three"), ("assistant", "Four")],
    [("user", "Why?"), ("assistant", "<think>\nbecause\n</think>\n\nSo."), ("user", "More")],
    [("user", "Why?"), ("assistant", "<think>\nbecause\n</think>\n\nSo.")],
    [("user", "Why?"), ("assistant", "<think>a</think>b"), ("tool", "T1"), ("tool", "T2"), ("assistant", "x")],
    [("user", "<tool_response>x</tool_response>"), ("assistant", "ok")],
    [("assistant", "I begin"), ("user", "Hm")],
    [("user", "a"), ("user", "b")],
    [("system", "only")],
    [("user", "今天天气不错 🌍"), ("assistant", "e\u0301\u00a0"), ("user", "{{ x }} {% if %} 'quote' \\n")],
    [("user", "a"), ("system", "late"), ("user", "b")],
    [("user", "")],
]


def make_chats(shared_data):
    result = {"versions": versions(), "conversations": CONVERSATIONS, "templates": []}
    config = json.loads((shared_data / "tokenizers/qwen3/tokenizer_config.json").read_text())
    tokenizers_of = {}
    for name in ("qwen3", "llama2"):
        tokenizers_of[name] = Tokenizer.from_str(lzma.open(shared_data / "tokenizers" / name / "tokenizer.json.xz").read().decode())
    for template in [*TEMPLATES, {"name": "qwen3 (shared data)", "family": "qwen3", "tokenizer": "qwen3", "text": config["chat_template"]},
                     {"name": "qwen3 without thinking", "family": "qwen3", "tokenizer": "qwen3", "text": config["chat_template"], "thinking": False}]:
        entry = {k: v for k, v in template.items() if not (k == "text" and "qwen3" in template["name"])}
        tokens = {"bos_token": "<s>", "eos_token": "</s>"} if template.get("tokenizer") != "qwen3" else {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
        tokens.update(template.get("tokens", {}))
        entry["tokens"] = tokens
        arguments = dict(tokens)
        if template.get("thinking") is False:
            arguments["enable_thinking"] = False
        entry["rendered"] = []
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            pair = []
            for prompt in (False, True):
                try:
                    text = render_jinja_template(conversations=[messages], tools=None, documents=None, chat_template=template["text"],
                                                 add_generation_prompt=prompt, **arguments)[0][0]
                    row = {"text": text}
                    if "tokenizer" in template and prompt:
                        row["ids"] = tokenizers_of[template["tokenizer"]].encode(text, add_special_tokens=False).ids
                except jinja2.exceptions.TemplateError as error:
                    row = {"error": str(error)}
                pair.append(row)
            entry["rendered"].append(pair)
        result["templates"].append(entry)
    return result


def fnv1a(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def make_unicode():
    """For each normalizer, a hash over blocks of 4096 code points: each alone, behind "a" and before U+0301."""
    # Letters younger than Python's tables: their cases differ between libraries, so they are left out.
    lower = normalizers.Lowercase()
    young = [c for c in range(0x110000) if unicodedata.category(chr(c)) == "Cn" and lower.normalize_str(chr(c)) != chr(c)]
    result = {"versions": versions(), "block": 4096, "young": young, "hashes": {}}
    steps = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
             "Lowercase": normalizers.Lowercase()}
    for name, step in steps.items():
        hashes = []
        for begin in range(0, 0x110000, 4096):
            value = 0xCBF29CE484222325
            for code in range(begin, begin + 4096):
                if not 0xD800 <= code < 0xE000 and code not in young:
                    value = fnv1a(step.normalize_str("a" + chr(code) + "\u0301").encode(), value)
            hashes.append("%016x" % value)
        result["hashes"][name] = hashes
    return result


def main():
    parser = argparse.ArgumentParser()
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--shared-data", type=pathlib.Path, default=here.parents[2] / "shared" / "data")
    shared_data = parser.parse_args().shared_data
    output = here / "data" / "tokenizers"
    output.mkdir(parents=True, exist_ok=True)
    for name, data in (("toys", make_toys()), ("real", make_real(shared_data)), ("chats", make_chats(shared_data)), ("unicode", make_unicode())):
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        (output / f"{name}.json").write_text(text + "\n")
        print(name, len(text.encode()))


if __name__ == "__main__":
    main()
