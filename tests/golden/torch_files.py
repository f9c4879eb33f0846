"""Writes data/torch/*.pt: files of torch.save, good ones and hostile ones, for tests/loaders/torch_file_test.cpp.

Run with torch installed: python tests/golden/torch_files.py

Every number follows from the shape (`ramp`), so that the test needs no second file to know what is right. The hostile
files would create `duet_torch_file_ran` in the working folder if anybody ran them; this script does not load them.
"""

import collections
import io
import os
import pathlib
import pickle
import warnings
import zipfile

import torch

FOLDER = pathlib.Path(__file__).parent / "data" / "torch"
MARKER = "duet_torch_file_ran"


def ramp(*shape: int, dtype: torch.dtype = torch.float32, start: float = 0.0) -> torch.Tensor:
    """start, start + 1/8, start + 2/8, ...: exact in every dtype here."""
    count = torch.Size(shape).numel()
    return (start + torch.arange(count, dtype=torch.float64) / 8).to(dtype).reshape(shape)


def save(name: str, value, **options) -> None:
    """Through a buffer, so that the prefix inside is always "archive" and does not depend on the file's name."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    (FOLDER / name).write_bytes(buffer.getvalue())


def entries_of(value) -> list[tuple[str, bytes]]:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    archive = zipfile.ZipFile(buffer)
    return [(info.filename, archive.read(info)) for info in archive.infolist()]


def rewrite(name: str, entries, compression=zipfile.ZIP_STORED, zip64=False) -> None:
    """The same entries as another zip writer puts them down."""
    with zipfile.ZipFile(FOLDER / name, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A name that stands twice.
        for entry, content in entries:
            info = zipfile.ZipInfo(entry)
            info.compress_type = compression
            with archive.open(info, "w", force_zip64=zip64) as file:
                file.write(content)


def kev_head() -> dict:
    """As Kev's training saves head.pt, small, with training arguments beside."""
    head = torch.nn.Module()
    head.q = torch.nn.Linear(6, 8)
    head.k = torch.nn.Linear(6, 8)
    with torch.no_grad():
        for i, parameter in enumerate((head.q.weight, head.q.bias, head.k.weight, head.k.bias)):
            parameter.copy_(ramp(*parameter.shape, start=-2.0 + i))
    return {"head": head.state_dict(), "base": "Qwen/Qwen2.5-0.5B", "base_revision": None, "lora": 16, "head_dim": 8,
            "option_isolation": False, "special_embeddings": True, "weights_dtype": "fp32",
            "temperature": 2.3510958125672174, "holdout": ["mmlu_pro", "händisch"],
            "args": {"lr": 2e-4, "epochs": 3, "seed": 2**40 + 7, "nested": {"betas": (0.9, 0.999), "warmup": -70000},
                     "resume": None, "empty": {}, "names": []}}


class Runs:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Thing:
    pass


def write_good() -> None:
    save("kev_head.pt", kev_head())
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(ramp(*parameter.shape))
    save("state_dict.pt", model.state_dict())
    save("parameters.pt", {"w": torch.nn.Parameter(ramp(2, 2)), "list": [torch.nn.Parameter(ramp(3))]})
    save("dtypes.pt", {"f64": ramp(2, 3, dtype=torch.float64), "f32": ramp(5), "f16": ramp(3, dtype=torch.float16),
                       "bf16": ramp(7, dtype=torch.bfloat16), "i64": torch.tensor([-(2**40), 3]),
                       "scalar": torch.tensor(2.5), "empty": torch.zeros(3, 0), "beyond": torch.tensor([1e300], dtype=torch.float64)})
    whole = ramp(6, 4)
    save("views.pt", {"whole": whole, "rows": whole[2:5], "row": whole[5], "one_column": whole[1:2, 2:3]})
    save("plain_4.pt", {"name": "x" * 300, "list": [1, 2.5, None, True, "y"]}, pickle_protocol=4)
    torch.serialization.set_crc32_options(False)
    save("no_checksums.pt", {"w": ramp(4)})
    torch.serialization.set_crc32_options(True)
    rewrite("rewritten.pt", entries_of({"w": ramp(4)}))
    rewrite("zip64.pt", entries_of({"w": ramp(4)}), zip64=True)
    rewrite("no_byteorder.pt", [entry for entry in entries_of({"w": ramp(4)}) if not entry[0].endswith("/byteorder")])


def write_refused() -> None:
    save("transposed.pt", {"w": ramp(3, 4).t()})
    save("expanded.pt", {"w": ramp(1, 4).expand(3, 4)})
    save("int32.pt", {"w": torch.tensor([1, 2], dtype=torch.int32)})
    save("number_keys.pt", {"state": {0: ramp(2)}})
    save("huge_integer.pt", {"seed": 2**70})
    save("tensors_4.pt", {"w": ramp(4)}, pickle_protocol=4)
    save("before_1_6.pt", {"w": ramp(4)}, _use_new_zipfile_serialization=False)
    with open(FOLDER / "before_1_6.pt", "rb+") as file:
        file.truncate(64)  # The rest holds addresses, and this much says what it is.
    rewrite("compressed.pt", entries_of({"w": ramp(256, 256) // 1024}), zipfile.ZIP_DEFLATED)
    good = entries_of({"w": ramp(4)})
    rewrite("big_endian.pt", [(name, b"big" if name.endswith("/byteorder") else content) for name, content in good])
    rewrite("twice.pt", good + [("archive/data/0", bytes(16))])
    outside = [(name.replace("archive/data/0", "archive/data/../x"), content.replace(b"X\1\0\0\0000", b"X\4\0\0\0../x"))
               for name, content in good]
    rewrite("outside.pt", outside)


def write_hostile() -> None:
    save("os_system.pt", {"w": Runs(os.system, f"touch {MARKER}")})
    save("eval.pt", {"w": Runs(eval, f"open('{MARKER}', 'w')")})
    save("import.pt", {"w": Runs(__import__, MARKER)})
    thing = Thing()
    thing.x = 1
    save("object.pt", {"w": thing})
    attributes = collections.OrderedDict(w=ramp(2))
    attributes.hidden = "x"
    save("attributes.pt", attributes)
    # A BUILD on an object that the reader knows: a tensor.
    good = dict(entries_of({"w": ramp(4)}))
    pickled = good["archive/data.pkl"]
    assert pickled.endswith(b"s.") and pickle.SETITEM == b"s"
    good["archive/data.pkl"] = pickled[:-2] + b"}X\1\0\0\0xK\1sbs."
    rewrite("build.pt", good.items())


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_good()
    write_refused()
    write_hostile()


if __name__ == "__main__":
    main()
