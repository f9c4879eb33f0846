"""What every part of the golden data shares: seeds, arrays on disk, versions."""

import importlib.metadata
import json
import re
import zlib
from pathlib import Path

import numpy as np
import torch

MAX_FILE_BYTES = 1_000_000
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "tokenizers", "safetensors", "numpy")


def versions(libraries=LIBRARIES) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in libraries}


def rng_of(seed: int, name: str) -> np.random.Generator:
    """A generator that depends on the seed and the name alone, so that adding a tensor changes no other."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def normal(seed: int, name: str, shape, std: float, mean: float = 0.0) -> torch.Tensor:
    values = rng_of(seed, name).standard_normal(tuple(shape)) * std + mean
    return torch.from_numpy(values.astype(np.float32))


def write_json(path: Path, value) -> None:
    """Indented, but a list of numbers and an object of plain values stay on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def on_one_line(match: re.Match) -> str:
        return re.sub(r"(?<=[\[{]) | (?=[\]}])", "", re.sub(r"\n\s*", " ", match[0]))

    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = re.sub(r"\[[\d\s,.eE+-]+\]", on_one_line, text)
    text = re.sub(r"\{\n *\"dtype\": [^{}]+\}", on_one_line, text)
    path.write_text(text + "\n", encoding="utf-8")


DTYPE_NAMES = {"float32": "F32", "int32": "I32", "int8": "I8", "uint8": "U8", "uint16": "U16"}


class Arrays:
    """Arrays in one .bin file (little-endian, C order, 16-byte aligned) with their index for the .json beside it."""

    def __init__(self):
        self.index: dict[str, dict] = {}
        self.data = bytearray()

    def add(self, name: str, array) -> str:
        if isinstance(array, torch.Tensor):
            if array.dtype in (torch.float16, torch.bfloat16):  # 16-bit floats travel as their bit patterns
                array = array.contiguous().view(torch.int16).numpy().view(np.uint16)
            else:
                array = array.detach().numpy()
        array = np.ascontiguousarray(array)
        if name in self.index:
            raise ValueError(f"array {name} is written twice")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"array {name} is not finite")
        self.data += b"\0" * (-len(self.data) % 16)
        self.index[name] = {
            "dtype": DTYPE_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "offset": len(self.data),
            "bytes": array.nbytes,
        }
        self.data += array.tobytes()
        return name

    def write(self, json_path: Path, content: dict) -> None:
        """Writes X.bin and X.json; the index is the key "arrays" of the latter, indexed by array name."""
        json_path.parent.mkdir(parents=True, exist_ok=True)
        bin_path = json_path.with_suffix(".bin")
        bin_path.write_bytes(bytes(self.data))
        write_json(json_path, {"made_with": versions(), **content, "bin": bin_path.name, "arrays": self.index})
