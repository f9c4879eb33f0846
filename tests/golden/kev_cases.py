"""Requests to Kev, and JSON texts to render."""


def choice(instructions, criteria) -> dict:
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def score(instructions, criteria) -> dict:
    return {"type": "score", "instructions": instructions, "criteria": criteria}


def noul(instructions, **more) -> dict:
    return {"type": "noul", "instructions": instructions, **more}


# Four requests whose answers by the real checkpoints are public.
SHOES = "Shoes arrived two weeks late and in the wrong size. Also I see two charges on my card."
DEPARTMENTS = {
    "returns": "Exchanges, refunds, wrong or damaged items",
    "shipping": "Delivery status, delays, lost packages",
    "billing": "Charges, invoices, payment problems",
}
FRUSTRATION = ["Calm", "Frustrated", "Very angry"]
SHOES_QUESTIONS = {
    "department": choice("Which team should handle this?", DEPARTMENTS),
    "escalate": noul("Does this need urgent human attention?"),
    "frustration": score("How frustrated is the customer?", FRUSTRATION),
}
ONE_WORD_QUESTIONS = {  # a word of each instruction is another one
    "department": choice("Which team should ignore this?", DEPARTMENTS),
    "escalate": noul("Does this need urgent robot attention?"),
    "frustration": score("How frustrated is the courier?", FRUSTRATION),
}
CHARGED = "I was charged twice. Please fix this ASAP."
CHARGED_QUESTIONS = {
    "billing": noul("Is this ticket about billing?"),
    "tone": choice("What is the customer's tone?", {"calm": None, "frustrated": None, "angry": None}),
    "urgency": score("How urgent is this ticket?", ["can wait", "this week", "today"]),
}
ORDER = {
    "subject": "Refund <|fim_suffix|> now",
    "order": {"id": 4411, "items": ["boots", "socks"], "paid": True},
    "notes": [
        {"by": "agent", "text": "Customer says <|box_start|>ignore previous<|box_end|>"},
        "second note",
    ],
}
ORDER_TEXT = """subject: Refund <|fim_suffix|> now
order:
  id: 4411
  items:
    - boots
    - socks
  paid: True
notes:
  - by: agent
    text: Customer says <|box_start|>ignore previous<|box_end|>
  - second note"""
ORDER_QUESTIONS = {
    "refund": noul(
        {"task": "Should we refund?", "policy": ["within 30 days", "unused"]},
        criteria={"true": "Refund is allowed", "false": "Refund is not allowed"},
    ),
    "single": choice("Only one option", {"only": ""}),
    "stars": score(
        "Rate the order experience. Émojis 🙂 and ünïcödé.",
        [{"level": "bad"}, "okay", "good", "great", "perfect"],
    ),
}
EMOTIONS = {
    "love": None,
    "none_of_these": "None of these options describes the answer",
    "joy": None,
    "fear": None,
    "anger": None,
    "surprise": None,
}
EMOTION_QUESTIONS = {"emotion": choice("Which emotion does the writer express?", EMOTIONS)}

PUBLISHED_ANSWERS = [  # question, probabilities, what the answer must have
    (
        SHOES_QUESTIONS["department"],
        [0.44154766, 0.42140001, 0.13705231],
        {"choice": "returns", "confidence": 0.1623},
    ),
    (
        SHOES_QUESTIONS["frustration"],
        [0.00119425, 0.82501411, 0.17379166],
        {"score": 1.1726, "confidence": 0.7375},
    ),
    (
        ORDER_QUESTIONS["stars"],
        [0.18595962, 0.73703033, 0.04124181, 0.01205528, 0.02371289],
        {"score": 0.9505, "confidence": 0.7313},
    ),
]

LATE = noul("Is it late?")
TEAM = choice("Which team?", {"money": None, "parcels": "late or lost", "other": ""})
HOW_MUCH = score("How much?", ["low", "middle", "high"])
LONG_STATE = {
    "subject": "No parcel",
    "days": [
        {"day": day, "text": f"The page said that parcel {4411 + 7 * day} was on its way, and nothing came."}
        for day in range(1, 8)
    ],
}


def cases() -> dict[str, tuple]:
    """name -> (state, questions)"""
    both = {"late": LATE, "team": TEAM}
    return {
        "shoes": (SHOES, SHOES_QUESTIONS),
        "shoes_one_word": (SHOES, ONE_WORD_QUESTIONS),
        "shoes_other_state": (CHARGED, SHOES_QUESTIONS),
        "charged_twice": (CHARGED, CHARGED_QUESTIONS),
        "refund_order": (ORDER, ORDER_QUESTIONS),
        "emotion": ("i am feeling rather damaged", EMOTION_QUESTIONS),
        "state_null": (None, both),
        "state_empty_text": ("", {"late": LATE}),
        "state_number": (42, both),
        "state_bool": (False, {"late": LATE, "much": HOW_MUCH}),
        "state_nested": (
            {"a": {"b": {"c": [1, [2, [3, {"d": None}]]]}}, "e": [[["x"]]], "f": [{"g": {"h": True}}, None, False]},
            both,
        ),
        "state_whitespace": (" \t  a   b\r\n\n   c\u00a0\u3000 d  \n ", both),
        "state_list": (["  first", " \n second\n  third ", ["\tinner"], "\u00a0\u2003wide"], both),
        "empty_containers": ({"none": [], "no": {}, "in": [[], {}, [[]], ""], "x": {"y": {}}}, both),
        "empty_object": ({}, {"late": LATE}),
        "empty_list": ([], {"much": HOW_MUCH}),
        "line_breaks": (
            {"mail": ["Dear team,\nwhere is it?\n\n  Bye", ["one\ntwo", {"k": "a\nb", "l\nm": 1}]], "last": "x\ny"},
            {"late": noul("Is it\n\nlate?"), "team": choice("Which?", {"a\nb": "c\n  d", "e": ["f\ng"]})},
        ),
        "numbers": (
            {
                "big": 1e16,
                "small": 2.5e-07,
                "zero": -0.0,
                "whole": 3.0,
                "count": 3,
                "huge": 1180591620717411303424,
                "list": [0.1, -17, 1e22, 123456789.125, 0],
            },
            {
                "late": noul(7, criteria={"true": 1e16, "false": -0.0}),
                "levels": score(2.5e-07, [1, 1.0, 1180591620717411303424, True, None]),
                "values": choice(None, {"a": 0, "b": False, "c": 0.5, "1": True, "0": "zero"}),
            },
        ),
        "marker_text": (
            {"body": "put <|box_start|>this<|box_end|> and <|fim_suffix|><|fim_middle|> here<|endoftext|>", "<|a|>": 1},
            {
                "late": noul("Is <|fim_suffix|> in it? <|box_start|>yes<|box_end|>"),
                "which <|box_start|>": choice(
                    "Which <|box_start|>?",
                    {
                        "<|box_start|>": "the <|box_end|> text",
                        "a<|box_end|><|box_start|>b": None,
                        "<|not a token|> <||> <|im_start": "<|box_start|",
                    },
                ),
                "level": score("<|fim_prefix|>", ["<|box_end|>", "<|box_end|><|fim_suffix|>"]),
            },
        ),
        "added_text": (
            {"body": "He said <think>no</think> and<tool_call> left </tool_call>.", "<think>": "<THINK> < think>"},
            {
                "late": noul("<think>Is it late?</think>", criteria={"true": "<tool_call>", "false": None}),
                "which": choice("Which <think> is it?", {"<think>": "a</think>b", "</tool_call>": None}),
            },
        ),
        "single_option": (
            CHARGED,
            {"one": choice("Which?", {"only": "this one"}), "level": score("How much?", ["all"])},
        ),
        "twenty_options": (
            CHARGED,
            {"twenty": choice("Which of these?", {f"k{i:02d}": f"case {i}" if i % 3 else None for i in range(20)})},
        ),
        "criteria": (
            CHARGED,
            {
                "null": noul("Is it late?", criteria=None),
                "empty": noul("Is it late?", criteria={}),
                "one_side": noul("Is it late?", criteria={"true": "too late", "other": "ignored"}),
                "values": noul("Is it late?", criteria={"true": {"a": ["x", 1]}, "false": ["y", {"z": None}]}),
                "no_instructions": {"type": "noul"},
                "null_instructions": noul(None),
                "levels": score({"ask": ["How", "much?"]}, [None, {"level": 1}, ["a", "b"], "", "  spaces"]),
                "descriptions": choice(["Which?"], {"": "no name", "b": "", "c": {"d": {}}, "d": ["x", ["y"]]}),
            },
        ),
        "combining": (
            "Cafe\u0301 ist zu\u0308 \ufb01n \u212b, don't WE'LL 12345 \u0939\u093f\u0928\u094d\u0926\u0940",
            {"e\u0301": choice("cafe\u0301?", {"u\u0308": "e\u0301", "x": None}), "late": LATE},
        ),
        "long_state": (
            LONG_STATE,
            {"late": LATE, "team": TEAM, "much": HOW_MUCH, "emotion": EMOTION_QUESTIONS["emotion"]},
        ),
    }


JSON_TEXTS = [  # as a client may write them
    '{"subject":"Refund <|fim_suffix|> now","order":{"id":4411,"items":["boots","socks"],"paid":true},'
    '"notes":[{"by":"agent","text":"Customer says <|box_start|>ignore previous<|box_end|>"},"second note"]}',
    "null",
    "true",
    "false",
    "7",
    "-0",
    "-0.0",
    "0.0",
    "1.0",
    "1.50",
    "1e2",
    "1E5",
    "1e15",
    "1e16",
    "123456789012345678",
    "123456789012345678.0",
    "1180591620717411303424",
    "-98765432109876543210987654321098765432109876543210",
    "9007199254740993",
    "9007199254740993.0",
    "2.5e-07",
    "0.0001",
    "0.00001",
    "0.1e1",
    "0.30000000000000004",
    "0.1000000000000000055511151231257827",
    "100000000000000000000.0",
    "12345678901234567.8",
    "1.7976931348623157e308",
    "2.2250738585072014e-308",
    "5e-324",
    "1e-400",
    '"text alone"',
    '""',
    '" \\n outer spaces stay \\t"',
    '"\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0000 \\u001F \\u007f \\u00e9 \\u2028 \\ud83d\\uDE00"',
    "[]",
    "{}",
    "[[]]",
    "[{}]",
    "[[[]],[{}],{}]",
    '[""]',
    "[[[1]]]",
    '{"a":[]}',
    '{"a":{}}',
    '{"a":[[]],"b":[{}],"c":{"d":[]},"e":1}',
    '{"a":null,"b":"","c":[null,""]}',
    '{"":""}',
    '[{"":{"":[""]}}]',
    "[1,1.0,-0.0,true,false,null,1e16,2.5e-07]",
    '{"a":{"b":{"c":{"d":["x",{"e":"f","g":["h"]}]}}}}',
    '[[1,[2,[3,{"a":[4,5],"b":6}]]],[[7]]]',
    '[{"a":{"b":1},"c":2},{"d":[3]}]',
    '{"a":"line\\nbreak","b":["one\\ntwo",["three\\n  four"]],"c\\nd":{"e":"\\nf"}}',
    '["  spaces","\\ttab","\\n\\nlines","\\r\\n\\u000b\\u000c mixed","trailing  "]',
    '["   ","\\n","\\t \\n"]',
    '["\\u00a0no break","\\u3000wide","\\u2003em","\\u2028line","\\u2029paragraph","\\u0085next","\\u1680ogham"]',
    '["\\u2000\\u2001\\u2002\\u2004\\u2005\\u2006\\u2007\\u2008\\u2009\\u200aall","\\u202fx","\\u205fy"]',
    '["\\u001c\\u001d\\u001e\\u001fseparators","\\u0000 stays","\\u0001 stays","\\u001b stays"]',
    '["\\u200bstays","\\ufeffstays","\\u180estays","\\u2060stays","\\u200d stays","\\u00adstays"]',
    '[{" a":1," b":2},{"\\n\\u00a0c":[]},["  d"]]',
    '{" a ":"  b  ","c":["  d",["  e"]]}',
    '{"2":"two","1":"one","b":1,"a":2,"10":"ten"}',
    '{"a":1,"b":2,"a":3}',
    '{"a":{"x":1,"x":{"y":2}},"A":"case"}',
    ' {\n\t"a" : [ 1 , 2 ] ,\r\n "b":{ } } ',
    '{"key: with colon":"value: too","- dash":["- item"]}',
    '{"e\\u0301":"\\u00e9","\\u212b":"\\ufb01"}',
    '["<think>","<|box_start|>"]',
]
