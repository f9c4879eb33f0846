"""Codes, scales and decoded values of small tensors as bitsandbytes makes them, and our linear 8-bit blocks:
data/quant/."""

from pathlib import Path

import bitsandbytes.functional as bnb
import numpy as np
import torch
from bitsandbytes.backends.default.ops import (
    _dequantize_4bit_compute as decode_portably,
)  # see README: the native kernel

from common import Arrays, normal, rng_of

FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SEED = 20


def midpoints(quant_type: str) -> torch.Tensor:
    code = bnb.get_4bit_type(quant_type, device="cpu").sort().values
    return (code[:-1] + code[1:]) / 2


def ties(quant_type: str) -> torch.Tensor:
    """Blocks of 32 whose absmax is 1: every midpoint, its two neighbours, and the codes themselves."""
    middle = midpoints(quant_type)
    code = bnb.get_4bit_type(quant_type, device="cpu")
    one = torch.ones(1)
    rows = [
        torch.cat([one, middle, torch.zeros(16)]),
        torch.cat([-one, middle.nextafter(one * 2), torch.zeros(16)]),
        torch.cat([one, middle.nextafter(one * -2), torch.zeros(16)]),
        torch.cat([code, -code]),
    ]
    return torch.stack(rows)


def inputs() -> dict[str, tuple[torch.Tensor, str]]:
    outliers = normal(SEED, "outliers", (32, 48), 0.02)
    rng = rng_of(SEED, "outlier places")
    outliers.view(-1)[torch.from_numpy(rng.integers(0, outliers.numel(), 12))] = torch.from_numpy(
        rng.choice([-6.0, 5.0, 0.9], 12).astype(np.float32)
    )
    zeros = normal(SEED, "zeros", (8, 64), 0.05)
    zeros[2:4] = 0.0
    zeros[5, :32] = -0.0
    zeros[7] = 0.0
    denormals = normal(SEED, "denormals", (6, 64), 1.0)
    denormals *= torch.tensor([1e-36, 2e-38, 4e-39, 1e-40, 3e-44, 1.0]).view(-1, 1)
    denormals[5, 1:] *= 1e-39
    short_zero = normal(SEED, "short zero", (5, 26), 0.05)
    short_zero.view(-1)[128:] = 0.0
    return {
        "normal_64x96": (normal(SEED, "normal_64x96", (64, 96), 0.05), "normal, standard deviation 0.05"),
        "normal_3x50": (normal(SEED, "normal_3x50", (3, 50), 0.05), "blocks cross rows, the last one is short"),
        "normal_5x13": (normal(SEED, "normal_5x13", (5, 13), 0.05), "odd count: half of the last byte is unused"),
        "one_1x1": (torch.tensor([[-0.25]]), "a single element"),
        "outliers_32x48": (outliers, "a few values two orders above the rest"),
        "zeros_8x64": (zeros, "blocks of zeros of either sign"),
        "short_zero_5x26": (short_zero, "the short last block is all zero"),
        "denormals_6x64": (denormals, "absmax down to denormal numbers"),
        "ties_nf4_4x32": (ties("nf4"), "values on the midpoints between NF4 codes, and one step beside them"),
        "ties_fp4_4x32": (ties("fp4"), "the same for FP4"),
        "large_192x100": (
            normal(SEED, "large", (192, 100), 0.05),
            "more than 256 blocks of 64 or 32: two nested scales",
        ),
    }


def input_types(name: str) -> list[str]:
    if name == "large_192x100":
        return ["bfloat16"]  # 19,200 values: kept small on disk
    return list(FLOATS) if name in ("normal_64x96", "normal_3x50") else ["float32"]


def block_sizes(name: str, dtype: str) -> tuple[int, ...]:
    if name == "normal_64x96" and dtype == "float32":
        return BLOCK_SIZES
    if name.startswith("ties"):
        return (32,)
    return (32, 64) if dtype == "float32" or name == "large_192x100" else (64,)


def nearest_map_codes(values: torch.Tensor, code: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Second-level codes by the plain rule, nearest with ties to the lower, as bitsandbytes' portable code has it."""
    codes, scales = [], []
    for block in values.split(256):
        absmax = block.abs().max()
        scaled = (block * (1.0 / absmax.clamp(min=1e-38))).clamp(-1, 1)
        codes.append(torch.bucketize(scaled, (code[:-1] + code[1:]) / 2))
        scales.append(absmax)
    return torch.cat(codes).to(torch.uint8), torch.stack(scales)


def decode_by_formula(
    packed: np.ndarray, absmax: np.ndarray, code: np.ndarray, block_size: int, count: int
) -> np.ndarray:
    """w = code[q] * absmax in float32, the earlier element in the high half of a byte."""
    halves = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)[:count]
    return code[halves] * np.repeat(absmax, block_size)[:count]


def nested_scales(arrays: Arrays, name: str, value: torch.Tensor, quant_type: str, block_size: int) -> dict:
    """Double quantisation: one code a block, one scale for 256 codes, and the offset."""
    _, nested = bnb.quantize_4bit(value, blocksize=block_size, quant_type=quant_type, compress_statistics=True)
    restored = bnb.dequantize_blockwise(nested.absmax, nested.state2) + nested.offset
    by_formula = (
        nested.state2.code[nested.absmax.int()].view(-1)
        * nested.state2.absmax.repeat_interleave(256)[: nested.absmax.numel()]
    ) + nested.offset
    if not torch.equal(restored, by_formula):
        raise ValueError(f"{name}: nested scales do not follow the formula")
    _, plain = bnb.quantize_4bit(value, blocksize=block_size, quant_type=quant_type)
    nearest, scales = nearest_map_codes(plain.absmax - nested.offset, nested.state2.code)
    if not torch.equal(scales, nested.state2.absmax):
        raise ValueError(f"{name}: nested absmax does not follow the formula")
    return {
        "offset": arrays.add(name + "/nested/offset", nested.offset.view(1)),
        "scale_codes": arrays.add(name + "/nested/scale_codes", nested.absmax),
        "scale_codes_nearest": arrays.add(name + "/nested/scale_codes_nearest", nearest),
        "nested_absmax": arrays.add(name + "/nested/nested_absmax", nested.state2.absmax),
        "absmax_restored": arrays.add(name + "/nested/absmax_restored", restored),
    }


def four_bit_case(
    arrays: Arrays, key: str, value: torch.Tensor, quant_type: str, block_size: int, decode: bool
) -> dict:
    packed, state = bnb.quantize_4bit(value, blocksize=block_size, quant_type=quant_type)
    name = f"{key}/{quant_type}/{block_size}"
    case = {
        "quant_type": quant_type,
        "block_size": block_size,
        "codes": arrays.add(name + "/codes", packed.view(-1)),
        "absmax": arrays.add(name + "/absmax", state.absmax),
    }

    if block_size <= 64:
        case["nested"] = nested_scales(arrays, name, value, quant_type, block_size)

    formula = decode_by_formula(
        packed.view(-1).numpy(), state.absmax.numpy(), state.code.numpy(), block_size, value.numel()
    )
    if decode:
        case["decoded"] = {}
    for type_name, dtype in FLOATS.items():
        decoded = decode_portably(packed.view(-1), state.absmax, state.code, block_size, value.shape, dtype)
        want = torch.from_numpy(formula).view(value.shape).to(dtype)
        if not torch.equal(decoded, want):
            raise ValueError(f"{name}: decoding to {type_name} does not follow the formula")
        if decode:
            case["decoded"][type_name] = arrays.add(f"{name}/decoded_{type_name}", decoded)
    return case


def make_four_bit(out: Path) -> None:
    arrays, entries = Arrays(), []
    nested_map = bnb.create_dynamic_map()
    arrays.add("nf4_codes", bnb.get_4bit_type("nf4", device="cpu"))
    arrays.add("fp4_codes", bnb.get_4bit_type("fp4", device="cpu"))
    arrays.add("nested_map", nested_map)
    for name, (value, why) in inputs().items():
        for dtype in input_types(name):
            typed = value.to(FLOATS[dtype])
            key = f"{name}/{dtype}"
            cases = [
                four_bit_case(
                    arrays, key, typed, quant_type, block_size, decode=decoded_is_stored(name, dtype, block_size)
                )
                for quant_type in (("nf4", "fp4") if not name.startswith("ties") else (name.split("_")[1],))
                for block_size in block_sizes(name, dtype)
            ]
            entry = {"name": name, "why": why, "value_type": dtype, "shape": list(value.shape)}
            entries.append({**entry, "values": arrays.add(key + "/values", typed), "cases": cases})
    arrays.write(out / "quant" / "four_bit.json", {"seed": SEED, "inputs": entries})


def decoded_is_stored(name: str, dtype: str, block_size: int) -> bool:
    small = not name.startswith(("large", "normal_64x96", "outliers"))
    return dtype == "float32" and block_size in (32, 64) and small or (name, block_size) == ("outliers_32x48", 64)


def linear_int8(values: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Our 8-bit blocks: scale = absmax / 127, code = round-half-even(x / scale), in float32; scale 0 has codes 0."""
    flat = values.astype(np.float32).reshape(-1)
    codes, scales = np.zeros(flat.size, np.int8), []
    for start in range(0, flat.size, block_size):
        block = flat[start : start + block_size]
        scale = np.abs(block).max() / np.float32(127)
        if scale > 0:
            codes[start : start + block_size] = np.clip(np.rint(block / scale), -127, 127).astype(np.int8)
        scales.append(scale)
    return codes, np.array(scales, np.float32)


def int8_ties() -> torch.Tensor:
    """Absmax 127, so scale 1: halves go to the even neighbour."""
    halves = torch.arange(-15.5, 15.5, 1.0)
    return torch.cat([torch.tensor([127.0]), halves, torch.tensor([-127.0]), halves]).view(2, 32)


def make_eight_bit(out: Path) -> None:
    arrays, entries = Arrays(), []
    tensors = {name: entry for name, entry in inputs().items() if not name.startswith(("ties", "large"))}
    tensors["ties_int8_2x32"] = (int8_ties(), "values half way between codes")
    for name, (value, why) in tensors.items():
        for dtype in FLOATS if name == "normal_3x50" else ["float32"]:
            typed = value.to(FLOATS[dtype])
            key, cases = f"{name}/{dtype}", []
            for block_size in (32, 64):
                codes, scales = linear_int8(typed.float().numpy(), block_size)
                case = {"block_size": block_size, "codes": arrays.add(f"{key}/{block_size}/codes", codes)}
                cases.append({**case, "scales": arrays.add(f"{key}/{block_size}/scales", scales)})
            entry = {"name": name, "why": why, "value_type": dtype, "shape": list(value.shape)}
            entries.append({**entry, "values": arrays.add(key + "/values", typed), "cases": cases})
    arrays.write(out / "quant" / "eight_bit.json", {"seed": SEED, "inputs": entries})


def make(out: Path) -> None:
    make_four_bit(out)
    make_eight_bit(out)
    print("quant", flush=True)
