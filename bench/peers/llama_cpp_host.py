"""llama.cpp on the same cores and the same shape, for docs/performance.md.

    python -m venv peer && CMAKE_ARGS=-DGGML_NATIVE=ON peer/bin/pip install llama-cpp-python gguf
    peer/bin/python bench/peers/llama_cpp_host.py --threads 2 --head q4_0

Writes a GGUF file of Qwen2.5-0.5B's shape with random weights (projections Q4_0; the tied embedding, which is the head
too, Q4_0 or Q8_0), then times llama_decode: the prompt in one batch, then one token at a time. Prints one JSON object.
The figures are of llama_decode alone: no sampling, no text.
"""

import argparse
import ctypes
import json
import os
import statistics
import tempfile
import time

import gguf
import llama_cpp
import numpy as np

LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 24, 896, 4864, 14, 2, 64, 151936
TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0}
BLOCK_BYTES = {"q4_0": 18, "q8_0": 34}  # of 32 weights: a float16 scale, then the codes


def random_blocks(rng: np.random.Generator, rows: int, columns: int, kind: str) -> np.ndarray:
    """[rows, bytes of a row]: uniform codes, scales that give weights of standard deviation 0.8 / sqrt(columns)."""
    blocks = rng.integers(0, 256, (rows * columns // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    code_deviation = 4.6 if kind == "q4_0" else 73.9
    scale = np.float16(0.8 / np.sqrt(columns) / code_deviation)
    blocks[:, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def write_model(path: str, head: str) -> None:
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, rows: int, columns: int, kind: str = "q4_0") -> None:
        writer.add_tensor(name, random_blocks(rng, rows, columns, kind), raw_dtype=TYPES[kind])

    def vector(name: str, size: int, value: float) -> None:
        writer.add_tensor(name, np.full(size, value, dtype=np.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN, head)
    vector("output_norm.weight", HIDDEN, 1.0)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        vector(at + "attn_norm.weight", HIDDEN, 1.0)
        vector(at + "ffn_norm.weight", HIDDEN, 1.0)
        for name, rows in (("attn_q", HEADS * HEAD_SIZE), ("attn_k", KV_HEADS * HEAD_SIZE), ("attn_v", KV_HEADS * HEAD_SIZE)):
            matrix(f"{at}{name}.weight", rows, HIDDEN)
            vector(f"{at}{name}.bias", rows, 0.01)
        matrix(at + "attn_output.weight", HIDDEN, HEADS * HEAD_SIZE)
        matrix(at + "ffn_gate.weight", MLP, HIDDEN)
        matrix(at + "ffn_up.weight", MLP, HIDDEN)
        matrix(at + "ffn_down.weight", HIDDEN, MLP)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds_of_decode(context, tokens: list[int]) -> float:
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    batch = llama_cpp.llama_batch_get_one(array, len(tokens))
    start = time.perf_counter()
    if llama_cpp.llama_decode(context, batch) != 0:
        raise RuntimeError("llama_decode failed")
    logit = llama_cpp.llama_get_logits(context)[0]  # waits for the result
    taken = time.perf_counter() - start
    if not np.isfinite(logit):
        raise RuntimeError("the logits are not finite")
    return taken


def measure(path: str, threads: int, prompt: int, decode: int, repeats: int) -> dict:
    model_parameters = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_parameters)
    context_parameters = llama_cpp.llama_context_default_params()
    context_parameters.n_ctx = prompt + decode + 8
    context_parameters.n_batch = max(prompt, 32)
    context_parameters.n_threads = context_parameters.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, context_parameters)
    tokens = [(i * 7919 + 13) % VOCABULARY for i in range(prompt + decode)]
    prefill_samples, decode_samples = [], []
    for repeat in range(repeats + 1):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        prefill = seconds_of_decode(context, tokens[:prompt])
        steps = [seconds_of_decode(context, [token]) for token in tokens[prompt:]]
        if repeat > 0:  # the first round warms caches
            prefill_samples.append(prefill)
            decode_samples += steps
    cpu = os.times()
    quarters = statistics.quantiles(decode_samples, n=4)
    result = {
        "decode_tokens_per_second": {
            "median": 1 / statistics.median(decode_samples),
            "low": 1 / quarters[2],
            "high": 1 / quarters[0],
            "best": 1 / min(decode_samples),
        },
        "prefill_tokens_per_second": {"median": prompt / statistics.median(prefill_samples), "best": prompt / min(prefill_samples)},
        "cpu_seconds": cpu.user + cpu.system,
    }
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--head", choices=sorted(TYPES), default="q4_0")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", help="where the GGUF file is kept; default: a temporary file")
    options = parser.parse_args()
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or os.path.join(folder, "model.gguf")
        if not os.path.exists(path):
            write_model(path, options.head)
        result = {"peer": f"llama-cpp-python {llama_cpp.__version__}", "head": options.head, "threads": options.threads}
        result |= measure(path, options.threads, options.prompt, options.decode, options.repeats)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
