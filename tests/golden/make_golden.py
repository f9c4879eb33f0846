#!/usr/bin/env python3
"""Makes tests/golden/data with the reference stack (see README.md for the layout).

    make_golden.py [--only PART] [--out DIR]     write
    make_golden.py --check                       regenerate elsewhere and compare

stories260k and the tokenizer of Laya are read from $DUET_SHARED_DATA, by default ../shared/data beside the repository.
"""

import argparse
import filecmp
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["TORCHDYNAMO_DISABLE"] = (
    "1"  # bitsandbytes compiles its portable kernels, which may fuse and round differently
)

import numpy as np
import torch

import adapters
import bnb_checkpoints
import checkpoints
import hybrids
import kev
import laya
import quant_tables
import sampling
import stories
from common import MAX_FILE_BYTES

HERE = Path(__file__).resolve().parent
PARTS = {  # in this order: adapters are made on models, hybrids on kev
    "models": checkpoints.make,
    "quant": quant_tables.make,
    "bnb": bnb_checkpoints.make,
    "adapters": adapters.make,
    "sampling": sampling.make,
    "stories260k": stories.make,
    "laya": laya.make,
    "kev": kev.make,
    "hybrids": hybrids.make,
}


def make(out: Path, parts: list[str]) -> None:
    for part in parts:
        PARTS[part](out)


def floats_agree(want: Path, got: Path) -> bool:
    """Logits may differ in the last bits between processors; everything else may not."""
    index = json.loads(want.with_suffix(".json").read_text(encoding="utf-8"))["arrays"]
    a, b = want.read_bytes(), got.read_bytes()
    if len(a) != len(b):
        return False
    for entry in index.values():
        part = slice(entry["offset"], entry["offset"] + entry["bytes"])
        if entry["dtype"] != "F32":
            if a[part] != b[part]:
                return False
        elif not np.allclose(np.frombuffer(a[part], "<f4"), np.frombuffer(b[part], "<f4"), rtol=1e-5, atol=1e-5):
            return False
    return True


def numbers_agree(want, got) -> bool:
    """The same for the numbers of a JSON text, where the last of four decimals may round the other way too."""
    if isinstance(want, float) and isinstance(got, float):
        return math.isclose(want, got, rel_tol=1e-5, abs_tol=1.01e-4)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(map(numbers_agree, want, got))
    if isinstance(want, dict) and isinstance(got, dict):
        return list(want) == list(got) and all(map(numbers_agree, want.values(), got.values()))
    return type(want) is type(got) and want == got


def alike(want: Path, got: Path) -> bool:
    if filecmp.cmp(want, got, shallow=False):
        return True
    if want.name == "golden.json":
        return numbers_agree(*(json.loads(path.read_text(encoding="utf-8")) for path in (want, got)))
    return want.suffix == ".bin" and floats_agree(want, got)


def differences(want: Path, got: Path) -> list[str]:
    files = {path.relative_to(root) for root in (want, got) for path in root.rglob("*") if path.is_file()}
    result = []
    for name in sorted(files):
        a, b = want / name, got / name
        if not a.exists() or not b.exists():
            result.append(f"{name}: only in {'the new' if b.exists() else 'the old'}")
        elif not alike(a, b):
            result.append(f"{name}: differs")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "data")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    os.environ.setdefault("DUET_SHARED_DATA", str(HERE.parents[2] / "shared" / "data"))

    parts = [part for part in PARTS if not arguments.only or part in arguments.only]
    if not arguments.check:
        make(arguments.out, parts)
        large = [path for path in arguments.out.rglob("*") if path.is_file() and path.stat().st_size > MAX_FILE_BYTES]
        if large:
            sys.exit(f"files above {MAX_FILE_BYTES} bytes: {large}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if "adapters" in parts and "models" not in parts:
            shutil.copytree(arguments.out / "models", Path(folder) / "models")
        if "hybrids" in parts and "kev" not in parts:
            shutil.copytree(arguments.out / "kev", Path(folder) / "kev")
        make(Path(folder), parts)
        wrong = [line for part in parts for line in differences(arguments.out / part, Path(folder) / part)]
    print("\n".join(wrong) or "no differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
