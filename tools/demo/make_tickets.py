#!/usr/bin/env python3
"""Makes support tickets with a known truth, from the phrases beside this file. The same seed gives the same tickets.

    make_tickets.py train 1000 --seed 1                      tickets made without any held-out phrase
    make_tickets.py test 400 --seed 7 --max-words 100        tickets_test.jsonl
    make_tickets.py samples --seed 8                         tickets_sample.jsonl
    make_tickets.py check                                    no test phrase is one that training can show

Each ticket has one open matter (its topic decides the team) and up to five signals (their points decide the urgency).
A ticket is hard when it takes more than spotting a word: a second matter that is closed, a statement taken back later,
an angry tone without substance, two weekdays to subtract, or three and more signals to add up.

Test tickets use held-out phrases for every part that decides the answer: the open matter, each signal, corrections and
the frame that joins two matters. Not one of these phrases is ever seen in training. Their words are: the models learn
English from these tickets alone and cannot know a word that is in none of them.
"""
import argparse
import itertools
import json
import random
import re

import phrases_signals
import phrases_topics
from phrases_signals import SIGNALS, urgency_of

WEEKDAYS = phrases_topics.SLOTS["day"]
SIGNAL_ORDER = ("scope", "block", "time", "harm", "plan", "tone")

# How often a kind of signal is in a ticket, and at which level: most tickets are not urgent, as in life.
SIGNAL_ODDS = {
    "scope": (0.52, {"one": 5, "team": 4, "all": 3}),
    "block": (0.45, {"free": 4, "blocked": 5}),
    "time": (0.48, {"far": 4, "soon": 3, "now": 3, "weekday": 4}),
    "harm": (0.26, {"money": 5, "security": 3}),
    "plan": (0.28, {"basic": 4, "gold": 4}),
    "tone": (0.16, {"angry": 1}),
}


class Phrases:
    """The phrases of one split: "train", "dev" (to tune by) or "test" (to measure once).

    Phrases marked "~" are held out. The first third of a bank's held-out phrases, at least one, is for "dev", the rest
    for "test". A bank with a single held-out phrase gives that to "test" and its second unmarked one to "dev".
    """

    def __init__(self, split):
        self.split = split
        self.banks_ = {}

    def bank(self, phrases, decisive=True):
        """The phrases of this split; greetings, asides and slot values (`decisive` false) are shared by all splits."""
        if not decisive:
            return tuple(p.lstrip("~") for p in phrases if self.split == "test" or not p.startswith("~"))
        key = id(phrases)
        if key not in self.banks_:
            held_out = [p[1:] for p in phrases if p.startswith("~")]
            train = [p for p in phrases if not p.startswith("~")]
            if len(held_out) > 1:
                share = (len(held_out) + 1) // 3
                dev, test = held_out[:share], held_out[share:]
            else:
                dev, test = train[1:2] if len(train) > 2 else [], held_out
            chosen = {"test": test, "dev": dev, "train": [p for p in train if p not in dev]}[self.split]
            self.banks_[key] = tuple(chosen or train)
        return self.banks_[key]


def expand(rng, text):
    """Replaces each {a|b} by one of its choices."""
    while True:
        match = re.search(r"\{([^{}]*\|[^{}]*)\}", text)
        if not match:
            return text
        text = text[:match.start()] + rng.choice(match.group(1).split("|")) + text[match.end():]


def fill(rng, phrases, text, extra=None):
    """Expands a phrase's choices, then its <slots>. `extra` holds the slots that are fixed, and gets the new ones."""
    values = extra if extra is not None else {}

    def value(match):
        slot = match.group(1)
        if slot in values:
            return values[slot]
        if slot == "item2":
            items = phrases.bank(phrases_topics.SLOTS["item"], decisive=False)
            values[slot] = rng.choice([item for item in items if item != values.get("item")])
        elif slot == "n":
            return str(rng.randint(2, 9))
        elif slot == "big":
            return str(rng.choice((12, 15, 20, 25, 30, 40, 50, 60, 80, 120, 200)))
        elif slot in ("money", "money2"):
            values[slot] = f"{rng.choice('$€')}{rng.choice((19, 29, 35, 49, 80, 99, 120, 250, 480, 990))}"
        elif slot == "order":
            values[slot] = rng.choice(("A", "B", "K", "")) + str(rng.randint(1000, 9999))
        elif slot == "code":
            values[slot] = str(rng.choice((400, 401, 404, 409, 500, 502, 503)))
        elif slot == "year":
            return str(rng.randint(2012, 2025))
        else:
            values[slot] = rng.choice(phrases.bank(phrases_topics.SLOTS[slot], False))
        return values[slot]

    return re.sub(r"<([a-z0-9]+)>", value, expand(rng, text))


def pick(rng, phrases, bank, extra=None, decisive=True):
    text = fill(rng, phrases, rng.choice(phrases.bank(bank, decisive)), extra)
    return reword(rng, text) if decisive and phrases.split == "train" else text


SYNONYMS_OF = {word: line for line in phrases_signals.SYNONYMS for word in line}


def reword(rng, text):
    """In training alone: other words, words lost or out of place, so that no sentence is learned by heart."""
    if rng.random() < 0.3:
        return text
    noise = rng.choice((0.0, 0.0, 0.06, 0.15))
    words = []
    for word in text.split(" "):
        if word in SYNONYMS_OF and rng.random() < 0.3:
            words.append(rng.choice(SYNONYMS_OF[word]))
        elif rng.random() < noise and word.isalpha() and word.lower() not in KEPT_WORDS and word not in WEEKDAYS:
            if rng.random() < 0.4:
                words.append(rng.choice(STRAY_WORDS))
        else:
            words.append(word)
    if rng.random() < 0.2:
        words.insert(0, rng.choice(phrases_signals.FILLERS))
    if rng.random() < 0.05:
        words.insert(rng.randint(0, len(words)), rng.choice(STRAY_WORDS))
    return " ".join(words) or text


KEPT_WORDS = phrases_signals.KEPT_WORDS
STRAY_WORDS = ("the", "it", "this", "that", "here", "there", "we", "our", "my", "a", "of", "in", "on", "with", "for",
               "to", "very", "quite", "then", "also", "was", "has", "and", "so", "at", "by", "you", "from", "which",
               "these")


def weighted(rng, odds):
    return rng.choices(list(odds), weights=list(odds.values()))[0]


def make_signal(rng, phrases, kind, level):
    """A signal as (text, label, points)."""
    label, points, bank = SIGNALS[kind][level]
    extra = {}
    if level == "soon":
        extra["d"] = rng.choice(("2", "3"))
    elif level == "weekday":
        today, due = rng.sample(range(5), 2)
        days = (due - today) % 7
        extra = {"today": WEEKDAYS[today], "due": WEEKDAYS[due], "d": str(days)}
        points = 2 if days <= 1 else 1 if days <= 3 else 0
        if days == 1:
            label = "due in 1 day"
    text = pick(rng, phrases, bank, extra)
    text = text.replace("I are", "I am")
    return text, label.replace("<d>", extra.get("d", "")), points


def make_signals(rng, phrases, want_correction):
    """(sentences, [(label, points)] in the order of SIGNAL_ORDER, marks of what makes them hard)"""
    sentences, found, marks = [], [], set()
    kinds = [kind for kind in SIGNAL_ORDER if rng.random() < SIGNAL_ODDS[kind][0]]
    correctable = [kind for kind in kinds if kind in ("scope", "block", "time")]
    corrected = rng.choice(correctable) if want_correction and correctable else None
    for kind in kinds:
        level = weighted(rng, SIGNAL_ODDS[kind][1])
        text, label, points = make_signal(rng, phrases, kind, level)
        group = [text]
        if level == "weekday":
            marks.add("weekdays")
        if kind == corrected:
            others = {k: v for k, v in SIGNAL_ODDS[kind][1].items() if k not in (level, "weekday")}
            new_text, label, points = make_signal(rng, phrases, kind, weighted(rng, others))
            correction = rng.choice(phrases.bank(phrases_signals.CORRECTIONS)).replace("{S}", "<<S>>")
            group.append(expand(rng, correction).replace("<<S>>", new_text))
            marks.add("correction")
        sentences.append(group)
        found.append((label, points))
    total = sum(points for _, points in found)
    if "tone" in kinds and total <= 1:
        marks.add("tone")
    if sum(points > 0 for _, points in found) >= 3:
        marks.add("sum")
    rng.shuffle(sentences)
    late = [group[1] for group in sentences if len(group) > 1]
    if late and rng.random() < 0.6:  # the correction comes at the end, away from what it corrects
        sentences = [[group[0]] for group in sentences] + [late]
    return [sentence for group in sentences for sentence in group], found, marks


def make_problem(rng, phrases, topic, details=None):
    if phrases.split == "train" and rng.random() < 0.2:  # in headwords
        headwords = rng.sample(phrases_topics.HEADWORDS[topic[0]].split("|"), rng.choice((2, 3, 3, 4)))
        return rng.choice((", ", " and ", " ", ", ")).join(headwords)
    return pick(rng, phrases, topic[3], details)


def make_matter(rng, phrases, two):
    """(sentences, open topic, closed topic or None)"""
    topic = rng.choice(TOPICS_BY_TEAM[weighted(rng, TEAM_ODDS)])
    details = {}  # what the problem names, the request names too
    problem = make_problem(rng, phrases, topic, details)
    ask = pick(rng, phrases, topic[4], details)
    if not two:
        shape = rng.random()
        sentences = [problem, ask] if shape < 0.5 else [problem] if shape < 0.9 else [ask, problem]
        return sentences, topic, None
    closed = rng.choice([t for t in phrases_topics.TOPICS if t[1] != topic[1]])
    frame = rng.choice(phrases.bank(phrases_signals.TWO_MATTERS))
    frame = re.sub(r"\{([PCpc])\}", r"<<\1>>", frame)
    frame = expand(rng, frame)
    frame = frame.replace("<<P>>", problem).replace("<<C>>", make_problem(rng, phrases, closed))
    frame = frame.replace("<<p>>", pick(rng, phrases, topic[2], details))
    frame = frame.replace("<<c>>", pick(rng, phrases, closed[2]))
    return [frame] + ([ask] if rng.random() < 0.25 else []), topic, closed


TOPICS_BY_TEAM = {team: [t for t in phrases_topics.TOPICS if t[1] == team] for team in phrases_topics.TEAMS}
TEAM_ODDS = {"technical": 30, "billing": 24, "shipping": 22, "account": 14, "sales": 10}


def typo(rng, word):
    if len(word) < 4:
        return word
    i = rng.randrange(1, len(word) - 1)
    return rng.choice((word[:i] + word[i + 1:], word[:i] + word[i] + word[i:],
                       word[:i] + word[i + 1] + word[i] + word[i + 2:]))


def roughen(rng, text):
    """Typos, short forms, lost capitals and full stops, as people type."""
    if rng.random() < 0.25:
        for long, forms in phrases_signals.SHORT_FORMS.items():
            if rng.random() < 0.5:
                text = re.sub(rf"\b{long}\b", rng.choice(forms), text)
    if rng.random() < 0.35:
        words = text.split(" ")
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(words))
            if words[i].isalpha() and words[i] not in WEEKDAYS:
                words[i] = typo(rng, words[i])
        text = " ".join(words)
    style = rng.random()
    if style < 0.15:
        text = text.lower()
    elif style < 0.19:
        text = text.upper()
    if rng.random() < 0.08:
        text = text.replace(".", "").replace("!", "")
    return text


QUESTION = re.compile(r"(can (you|we|someone)|when (will|can)|how (much|do|can)|what (is|do|would)|which|does|"
                      r"is (it|there)|are you|do you)\b", re.IGNORECASE)


def join(rng, sentences):
    out = []
    for sentence in sentences:
        end = "?" if QUESTION.match(re.split(r"[.?!] ", sentence)[-1]) else "."
        if end == "." and rng.random() < 0.08:
            end = "!"
        sentence = re.sub(r"(^|[.?!] )([a-z])", lambda m: m.group(1) + m.group(2).upper(), sentence)
        out.append(sentence + ("" if sentence.endswith(("?", "!")) else end))
    return " ".join(out)


def make_ticket(seed, index, split="train", phrases=None):
    """One ticket: a dict with the text, the truth and the steps to it."""
    rng = random.Random(f"{split} {seed} {index}")
    phrases = phrases or Phrases(split)
    two = rng.random() < 0.34
    matter, topic, closed = make_matter(rng, phrases, two)
    signals, found, marks = make_signals(rng, phrases, want_correction=rng.random() < 0.1)
    if two:
        marks.add("two matters")
    body = matter + signals if rng.random() < 0.75 else signals[:1] + matter + signals[1:]
    if rng.random() < 0.35:
        body.insert(rng.randint(0, len(body)), pick(rng, phrases, phrases_signals.NOISE, decisive=False))
    if rng.random() < 0.02:  # a ticket somebody pasted half his mailbox into
        body += [pick(rng, phrases, phrases_signals.NOISE, decisive=False) for _ in range(rng.randint(8, 30))]
    if rng.random() < 0.6:
        body.insert(0, pick(rng, phrases, phrases_signals.OPENERS, decisive=False))
    if rng.random() < 0.5:
        body.append(pick(rng, phrases, phrases_signals.CLOSERS, decisive=False))
    points = sum(p for _, p in found)
    return {"id": f"{split}-{seed}-{index}", "text": roughen(rng, join(rng, body)), "team": topic[1],
            "urgency": urgency_of(points), "hard": bool(marks), "marks": sorted(marks), "topic": topic[0],
            "closed_topic": closed[0] if closed else None, "signals": found, "points": points}


def laya_answer(ticket):
    """Short. A ticket that takes something back is one for a second look: Laya is taught to say so."""
    urgency = "needs more information" if "correction" in ticket["marks"] else ticket["urgency"]
    return f"team: {ticket['team']} | urgency: {urgency}"


def kev_answer(ticket):
    """Reasons first: the matters, each signal with its points and the running sum, then the decision and why."""
    asks = f"{ticket['topic']} open"
    if ticket["closed_topic"]:
        asks = f"{ticket['closed_topic']} closed, {asks}"
    total, steps = 0, []
    for label, points in ticket["signals"]:
        total += points
        steps.append(f"{label} +{points} = {total}")
    counted = [label for label, points in sorted(ticket["signals"], key=lambda s: -s[1]) if points > 0]
    why = ", ".join([ticket["topic"]] + (counted[:2] or ["nothing presses"]))
    return (f"asks: {asks}\nsignals: {', '.join(steps) or 'none'}\nteam: {ticket['team']}\n"
            f"urgency: {ticket['urgency']}\nwhy: {why}")


def samples(seed):
    """One ticket of each sort, for a look: the first test ticket with that mark alone, then the first critical one."""
    phrases = Phrases("test")
    tickets = [make_ticket(seed, index, "test", phrases) for index in range(1000)]
    wanted = [[], ["two matters"], ["weekdays"], ["tone"], ["correction"], ["sum"], ["correction", "two matters"]]
    chosen = [next(t for t in tickets if t["marks"] == marks and t["signals"]) for marks in wanted]
    return chosen + [next(t for t in tickets if t["urgency"] == "critical")]


def wordings(text):
    """Every wording of a phrase, its slots left as they are."""
    match = re.search(r"\{([^{}]*\|[^{}]*)\}", text)
    if not match:
        return {text}
    before, after = text[:match.start()], text[match.end():]
    return {wording for choice in match.group(1).split("|") for wording in wordings(before + choice + after)}


def check():
    """Stops when a test phrase is one of the wordings that training can show."""
    banks = [bank for topic in phrases_topics.TOPICS for bank in topic[2:]]
    banks += [level[2] for kind in SIGNALS.values() for level in kind.values()]
    banks += [phrases_signals.CORRECTIONS, phrases_signals.TWO_MATTERS]
    seen, test = ({w.lower() for bank in banks for phrase in Phrases(split).bank(bank) for w in wordings(phrase)}
                  for split in ("train", "test"))
    if seen & test:
        raise SystemExit(f"these test phrases are in training, too: {sorted(seen & test)}")
    print(f"{len(seen)} wordings to learn from, {len(test)} to be tested on, none in both")


def main():
    parser = argparse.ArgumentParser(description="Makes support tickets with a known truth, one JSON object a line.")
    parser.add_argument("split", choices=("train", "dev", "test", "samples", "check"))
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-words", type=int, default=0, help="leave out longer tickets; 0: none")
    parser.add_argument("--all-fields", action="store_true", help="also the topic, the signals and both model answers")
    args = parser.parse_args()
    if args.split == "check":
        return check()
    if args.split == "samples":
        tickets = samples(args.seed)
    else:
        phrases = Phrases(args.split)
        stream = (make_ticket(args.seed, index, args.split, phrases) for index in itertools.count())
        short = (t for t in stream if not args.max_words or len(t["text"].split()) <= args.max_words)
        tickets = itertools.islice(short, args.count)
    for ticket in tickets:
        line = {k: ticket[k] for k in ("id", "text", "team", "urgency", "hard")}
        if args.all_fields:
            line = {**ticket, "laya": laya_answer(ticket), "kev": kev_answer(ticket)}
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
