"""Writes data/calibration.json: temperatures, calibration errors and thresholds as NumPy and SciPy state them.

Run with numpy and scipy installed: python tests/golden/calibration.py
"""

import json
import pathlib

import numpy as np
import scipy
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import binomtest

DATA = pathlib.Path(__file__).parent / "data"
BOUNDS = (0.5, 5.0)
BINS = 15
KINDS = ("choice", "score", "noul")
# Duet refuses the first two and reads special tokens of the next two as text; C++ tests cannot hold the last's integers.
LEFT_OUT = ("label_list", "criteria", "mask_text", "added_text", "numbers")


def log_loss(cases, temperatures):
    return -np.mean([log_softmax(np.array(z) / t)[right] for (z, right), t in zip(cases, temperatures)])


def accuracy(cases):
    return np.mean([int(np.argmax(z)) == right for z, right in cases])


def calibration_error(cases, temperatures, margin):
    sure = np.array([np.exp(log_softmax(np.array(z) / t)).max() for (z, _), t in zip(cases, temperatures)])
    right = np.array([int(np.argmax(z)) == r for z, r in cases], dtype=float)
    edges = np.linspace(0, 1, BINS + 1)
    # A case at the edge of a bin would depend on noise in the logits; one option has p = 1, which is the last edge.
    assert np.abs(sure[:, None] - edges[None, 1:-1]).min() > margin
    total = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (sure > low) & (sure <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    return total


def fit(cases):
    """The temperature, and whether the bound stopped it."""
    found = minimize_scalar(lambda t: log_loss(cases, [t] * len(cases)), bounds=BOUNDS, method="bounded",
                            options={"xatol": 1e-12, "maxiter": 1000}).x
    for bound in BOUNDS:
        if abs(found - bound) < 1e-4:
            return bound, True
    return found, False


def quality(cases, temperatures, margin=1e-6):
    return {"accuracy": accuracy(cases), "log_loss": log_loss(cases, temperatures),
            "calibration_error": calibration_error(cases, temperatures, margin)}


def drawn(random, logits, true_temperature):
    p = np.exp(log_softmax(np.array(logits) / true_temperature))
    return int(random.choice(len(logits), p=p / p.sum()))


def sets():
    """Logits are multiples of 1/64, which text holds exactly."""
    random = np.random.default_rng(11)

    def made(count, options, spread, true_temperature):
        cases = []
        for _ in range(count):
            n = int(random.choice(options))
            z = (np.round(random.normal(0, spread, n) * 64) / 64).tolist()
            cases.append((z, drawn(random, z, true_temperature)))
        return cases

    all_sets = {
        "too_sure": made(200, [2, 3, 4, 7, 12], 4.0, 2.2),
        "not_sure_enough": made(150, [3, 4], 1.5, 0.7),
        "yes_or_no": made(80, [2], 3.0, 1.4),
        "wild": made(120, [4], 6.0, 60.0),
        "certain": [([0.0, 2.0, -1.0], 1)] * 9,
        "one_option_between": [([3.0], 0), *[([1.0, 0.0], right) for right in (0, 0, 0, 1)]],
    }
    result = []
    for name, cases in all_sets.items():
        temperature, at_bound = fit(cases)
        result.append({"name": name, "logits": [z for z, _ in cases], "right": [r for _, r in cases],
                       "temperature": temperature, "at_bound": at_bound,
                       "before": quality(cases, [1.0] * len(cases)),
                       "after": quality(cases, [temperature] * len(cases))})
    return result


def gate(sureness, fast, deep):
    """Every outcome, by trying a threshold in every gap: [escalated, kept right, routed right]."""
    sureness, fast, deep = map(np.array, (sureness, fast, deep))
    outcomes = []
    for low in [-1.0, *sorted(set(sureness.tolist()))]:
        sent = sureness <= low
        outcomes.append([int(sent.sum()), int(fast[~sent].sum()), int(np.where(sent, deep, fast).sum())])
    return outcomes


def gates():
    random = np.random.default_rng(5)
    result = []
    for count in (1, 7, 60):
        sureness = (random.integers(1, 40 if count > 10 else 4, count) / 40).tolist()  # Many are equal.
        fast = [bool(random.random() < s) for s in sureness]
        deep = [bool(random.random() < 0.8) for _ in sureness]
        outcomes = gate(sureness, fast, deep)
        wishes = []
        for wish in (0.3, 0.6, 0.75, 0.8, 0.85, 0.999):
            for has_deep, least_kept in ((True, 1), (False, 1), (False, 10)):
                score = [routed / count if has_deep else kept / (count - sent) if count - sent >= least_kept else -1.0
                         for sent, kept, routed in outcomes]
                reached = [i for i, s in enumerate(score) if s >= wish]
                point = reached[0] if reached else int(np.argmax(score))
                wishes.append({"accuracy": wish, "has_deep": has_deep, "least_kept": least_kept,
                               "point": point, "reached": bool(reached)})
        shares = [{"share": share, "point": max(i for i, o in enumerate(outcomes) if o[0] <= share * count + 1e-12)}
                  for share in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)]
        result.append({"sureness": sureness, "fast_right": fast, "deep_right": deep, "outcomes": outcomes,
                       "accuracy_wishes": wishes, "share_wishes": shares})
    return result


def intervals():
    result = []
    for right, cases in ((0, 1), (1, 1), (5, 10), (95, 100), (400, 400), (123, 4567)):
        low, high = binomtest(right, cases).proportion_ci(0.95, method="wilson")
        result.append([right, cases, low, high])
    return result


def bucket(kind, options):
    return f"{kind}:" + ("2" if options <= 2 else "3-5" if options <= 5 else "6-10" if options <= 10 else "11+")


def command(folder, family, true_temperature, seed, least_cases, repeats):
    """What engine_run calibrate has to find on the golden cases of a checkpoint, each asked with several labels."""
    golden = json.loads((DATA / family / folder / "golden.json").read_text(encoding="utf-8"))
    random = np.random.default_rng(seed)
    lines, asked = [], []  # (kind, logits, right, temperature of the checkpoint)
    for _ in range(repeats):
        for case in golden["cases"]:
            if not case["questions"] or case["name"] in LEFT_OUT:
                continue
            labels = {}
            for (name, question), row in zip(case["questions"].items(), case["rows"]):
                right = drawn(random, row["logits"], true_temperature)
                temperature = row.get("temperature", golden.get("temperature"))
                asked.append((question["type"], row["logits"], right, temperature))
                criteria = question.get("criteria")
                labels[name] = {"noul": bool(right), "score": right}.get(question["type"])
                if question["type"] == "choice":
                    labels[name] = list(criteria)[right]
            lines.append({"case": case["name"], "labels": labels})
    groups = []
    for kind in KINDS:
        of_kind = [a for a in asked if a[0] == kind]
        fitted = {kind: fit([(z, r) for _, z, r, _ in of_kind])}
        sizes = {bucket(kind, len(z)) for _, z, _, _ in of_kind}
        if family == "laya" and len(sizes) > 1:
            for size in sorted(sizes):
                some = [(z, r) for _, z, r, _ in of_kind if bucket(kind, len(z)) == size]
                if len(some) >= least_cases and any(len(set(z)) > 1 for z, _ in some):
                    fitted[size] = fit(some)
        for name, (temperature, at_bound) in fitted.items():
            own = [a for a in of_kind if name in (kind, bucket(kind, len(a[1])))]
            cases = [(z, r) for _, z, r, _ in own]
            after = [fitted.get(bucket(kind, len(z)), fitted[kind])[0] for z, _ in cases]
            groups.append({"questions": name, "cases": len(own), "temperature": temperature, "at_bound": at_bound,
                           "before": quality(cases, [t for *_, t in own], 1e-4), "after": quality(cases, after, 1e-4)})
    return {"checkpoint": f"{family}/{folder}", "least_cases": least_cases, "lines": lines, "groups": groups}


def main():
    data = {"versions": {"numpy": np.__version__, "scipy": scipy.__version__}, "bins": BINS,
            "sets": sets(), "gates": gates(), "intervals": intervals(),
            "commands": [command("windowed", "laya", 1.0, 12, 12, 4), command("qwen2", "kev", 2.6, 2, 12, 4)]}
    (DATA / "calibration.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
