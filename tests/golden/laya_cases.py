"""Requests to Laya: states and questions, for the tiny checkpoints and for the English tokenizer."""

CATEGORIES = {
    "billing": "invoices, payments, refunds",
    "technical": "bugs, outages, integrations",
    "sales": "pricing, demos, new purchases",
    "other": "none of the above",
}
EMAIL_QUESTIONS = {  # published with rows and logits
    "category": {
        "type": "choice",
        "instructions": "Which team should handle the email in `body`?",
        "criteria": CATEGORIES,
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is the request in `body`?",
        "criteria": ["no time pressure", "needs attention soon", "blocking issue"],
    },
    "is_spam": {"type": "noul", "instructions": "Is this email unsolicited spam?"},
}
BILLING = {"subject": "Duplicate charge", "body": "I was charged twice for invoice 4411."}
EMAILS = {
    "billing": BILLING,
    "sales": {"subject": "Pricing", "body": "Can we see a demo and enterprise pricing?"},
    "spam": {"subject": "WIN NOW", "body": "Claim your free prize, click here!!!"},
    "arabic": {"subject": "فاتورة", "body": "تم خصم المبلغ مرتين."},
    "german": {"subject": "Doppelte Abbuchung", "body": "Rechnung 4411 wurde zweimal belastet."},
    "empty_body": {"subject": "", "body": ""},
}
QUEUE_STATE = "I was charged twice this month, I want my money back"
QUEUE_QUESTIONS = {
    "queue": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"billing": "billing and refunds", "tech": "login and app issues", "other": "everything else"},
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent?",
        "criteria": ["calm", "firm", "angry", "furious"],
    },
}
INTENT_QUESTIONS = {
    "intent": {
        "type": "choice",
        "instructions": "Which category should this request be routed to?",
        "criteria": {
            "billing": "payments, invoices, charges, refunds",
            "access": "sign-in, passwords, permissions, account access",
            "urgency": "an outage or a deadline that needs immediate action",
            "info": "a general-information request that needs no account action",
        },
    },
    "ok": {"type": "noul", "instructions": "Is the request clear enough to act on?"},
    "escalate": {"type": "noul", "instructions": "Should a human handle this?"},
}
INTENT_STATES = [
    "Hi, I was charged twice for my subscription this month. Both charges are on the same card and the second one was "
    "not authorized. Please refund the duplicate charge.",
    "I changed phones last week and now I cannot sign in to my account. The password reset email never arrives, and I "
    "need access restored before my team's review tomorrow morning.",
    "Something is wrong with my account. Please look into it and let me know what you find. Thanks.",
]

CONVERSATION = [
    {"role": "user", "content": "Where is my parcel?"},
    {"role": "agent", "content": "It left us on Monday."},
    {"role": "user", "content": "Then send it again or pay me back."},
]
LONG_TEXT = " ".join(
    f"On day {day} the page said that parcel {4411 + 7 * day} was on its way, and nothing came." for day in range(1, 15)
)


def named(count: int) -> dict:
    return {f"k{index:02d}": f"desc {index}" for index in range(count)}


def choice(instructions, criteria) -> dict:
    return {"type": "choice", "instructions": instructions, "criteria": criteria}


def score(instructions, criteria) -> dict:
    return {"type": "score", "instructions": instructions, "criteria": criteria}


def noul(instructions, **more) -> dict:
    return {"type": "noul", "instructions": instructions, **more}


REFUND = {"refund": noul("Refund?", labels={"false": "n", "true": "y"})}  # the head leaves most room for the state
YES_NO = choice("Refund?", ["yes", "no"])


def special_texts(mask: str, sep: str) -> dict:
    """What a user types that looks like a special token: the mask becomes a space, another one stays special."""
    return {
        "mask_text": (
            {"body": f"put {mask} and {sep} here{mask}"},
            {
                "masked": choice(f"Is {mask} in it?", {"yes": f"the {mask} is", f"no{mask}": None}),
                "sep": noul(f"Is {sep}it?", labels={"false": "n", "true": f"{sep} y"}),
            },
        )
    }


def tiny_cases(mask: str, sep: str) -> dict[str, tuple]:
    """name -> (state, questions), for every checkpoint; ASCII but for the names in NOT_ASCII."""
    return {
        "three_types": (BILLING, EMAIL_QUESTIONS),
        "three_types_spam": (EMAILS["spam"], EMAIL_QUESTIONS),
        "three_types_text": (QUEUE_STATE, EMAIL_QUESTIONS),
        "json_numbers": ({"a": 1.0, "b": [1e16, 1e-05, -0.0], "c": 3, "d": 0.1}, {**REFUND, "yes": YES_NO}),
        "json_nested": (
            {"paid": False, "note": None, "ok": True, "in": {"list": [[], {}, [{"x": ""}]]}},
            {"level": score("Level?", ["low", "high"])},
        ),
        "json_text": (
            {"t": "a\tb\nc\u0001\u001f\u007f", "q": '"\\/', "é": "票\u2028ß😀"},
            {**REFUND, "yes": YES_NO},
        ),
        "list_state": (CONVERSATION[2:], {**REFUND, "mood": score("Mood?", ["calm", "angry", "furious"])}),
        "list_cut_left": (CONVERSATION * 4, {**REFUND, "three": choice("Which?", ["parcel", "money", "other"])}),
        "empty_state": ("", {**REFUND, "category": EMAIL_QUESTIONS["category"]}),
        "long_state": (LONG_TEXT, {**REFUND, "category": EMAIL_QUESTIONS["category"]}),
        "long_options": (
            QUEUE_STATE,
            {
                "long": choice(
                    "Which of the teams should answer this?",
                    {
                        "billing": "payments, invoices, charges and refunds of every account of the team",
                        "access": "a password that is wrong, a page that does not open, an account that is locked",
                        "other": "everything that nobody else in the teams wants to answer before the deadline",
                    },
                ),
                "one_long": choice("Which?", {"only": "the customer asks for money back, " * 6}),
            },
        ),
        "long_instructions": (
            QUEUE_STATE,
            {"long": noul("Does the customer ask for money back? " * 6), "object": noul({"ask": ["refund?", 1.0]})},
        ),
        "same_options": (
            QUEUE_STATE,
            {"same": choice("Which?", {f"the same long label number {i}": "team" for i in range(6)})},
        ),
        "single_option": ("It came.", {"one": choice("Which?", {"only": None}), "level": score("Level?", ["low"])}),
        **special_texts(mask, sep),
        "noul_words": (
            QUEUE_STATE,
            {
                "labels": noul("Refund?", labels={"false": " keep ", "true": "pay\n"}),
                "criteria": noul("Refund?", criteria={"true": "money is asked for", "false": ""}),
                "both": noul(
                    "Refund?", criteria={"false": 0, "true": {"a": [1.0]}}, labels={"true": "A", "false": "B"}
                ),
                "null": noul("Refund?", criteria={"true": None}),
            },
        ),
        "label_list": (
            QUEUE_STATE,
            {"list": choice("Which?", ["red", "blue", "red", 7]), "yes": YES_NO, "six": choice("?", list("abcdef"))},
        ),
        "descriptions": (
            QUEUE_STATE,
            {"values": choice("Which?", {"a": "", "b": 0, "c": False, "d": ["x", {"y": None}], "e": 1e-05})},
        ),
        "score_2_and_7": (
            QUEUE_STATE,
            {
                "two": score("How urgent?", ["calm", "furious"]),
                "seven": score("How angry?", ["0", "1", "2", {"three": 3}, 4, "", "6"]),
            },
        ),
        "eleven_options": (BILLING, {"eleven": choice("Which?", named(11)), "list": choice("?", list("ABCDEFGHIJK"))}),
        "thirteen_options": (CONVERSATION, {"thirteen": choice("Which?", named(13))}),
        "spaces": ("  a  b   c    d     e\n\n\tf  ", {**REFUND, "level": score("How  much?", ["a  b", "   c"])}),
        "combining": (
            "Cafe\u0301 ist zu\u0308 \ufb01n \u212b",
            {"e\u0301": choice("cafe\u0301?", {"u\u0308": "e\u0301", "x": None})},
        ),
        "no_questions": (BILLING, {}),
    }


NOT_ASCII = {"json_text", "combining"}


def refused(head_max_len: int, max_len: int) -> tuple:
    """More options than markers fit: at 4 ids an option, the last one would stand at or behind max_len."""
    count = (max_len - 10) // 4 + 2
    question = choice("Which of the teams should answer this?", {f"{i:03d} team": "all of it" for i in range(count)})
    return BILLING, {"ok": YES_NO, "many": question}, f"question 'many' options exceed head_max_len={head_max_len}"


def english_requests() -> dict[str, tuple]:
    """name -> (state, questions); the first ones are published with their rows, logits or token counts."""
    requests = {"billing": (BILLING, EMAIL_QUESTIONS), "queue": (QUEUE_STATE, QUEUE_QUESTIONS)}
    for name, state in EMAILS.items():
        requests.setdefault(name, (state, EMAIL_QUESTIONS))
    for index, state in enumerate(INTENT_STATES):
        requests[f"intent_{index + 1}"] = (state, INTENT_QUESTIONS)
    cases = tiny_cases("[MASK]", "[SEP]")
    for name in (
        "json_numbers",
        "json_nested",
        "json_text",
        "list_state",
        "empty_state",
        "long_options",
        "long_instructions",
        "single_option",
        "mask_text",
        "noul_words",
        "label_list",
        "descriptions",
        "score_2_and_7",
        "spaces",
        "combining",
    ):
        requests[name] = cases[name]
    long = CONVERSATION * 20
    requests["list_cut_left"] = (long, {**REFUND, "category": EMAIL_QUESTIONS["category"]})
    requests["object_cut_right"] = ({"turns": long}, REFUND)
    requests["text_cut"] = (LONG_TEXT + "\n" + LONG_TEXT, {"category": EMAIL_QUESTIONS["category"]})
    requests["77_options"] = ("s", {"many": choice("Overflow the head", named(77))})
    requests["other_scripts"] = (
        {"stadt": "München", "都市": "東京🗼", "b": "|||EMAIL_ADDRESS||| [unused1] <|endoftext|>"},
        {"abteilung": choice("Welche Abteilung?", {"buchhaltung": "Rechnungen", "technik": "Fehler"})},
    )
    return requests


JSON_TEXTS = [  # as a client may write them; the text is what Python makes of each
    '{"b":1,"a":2,"b":3}',
    '{"a":{"x":1,"x":{"y":2,"y":3}},"a":[ ]}',
    "[1.0,1.50,-0.0,-0,0e5,1E5,1e5,1e15,1e16,1e22,1e-4,0.0001,0.00001,1e-5,123456789.123456789]",
    "[0.1,0.30000000000000004,100000000000000000.0,9007199254740993,9007199254740993.0,2.5e-8,5e-324]",
    "[1.7976931348623157e308,2.2250738585072014e-308,123456789012345678901234567890,-98765432109876543210]",
    "[4.35,0.000123,1234567890123456.7,12345678901234567.8,1e+3,1.0E-7,3.0e0]",
    '[true,false,null,"true"]',
    '"text alone"',
    "7",
    "null",
    '" \\" \\\\ \\/ \\b \\f \\n \\r \\t \\u0000 \\u001F \\u007f \\u00e9 \\u2028 \\ud83d\\uDE00 "',
    '{"\\u0041\\n":"é","é":"\\u00e9"}',
    ' {\n\t"a" : [ 1 , 2 ] ,\r\n "b":{ } } ',
    '[[[[]]],[{}],{"":""}]',
]
