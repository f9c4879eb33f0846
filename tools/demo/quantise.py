"""What a weight is worth after a round trip through 8-bit or NF4 blocks, to train and to measure under quantisation.

Blocks of 64 run over the flattened [out, in] weight, as in bitsandbytes and in Duet; the scale is the block's absmax.
"""
import torch

BLOCK = 64

# The sixteen NF4 levels: quantiles of a normal distribution, scaled to [-1, 1] (QLoRA, arXiv 2305.14314, appendix E).
NF4_LEVELS = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
              -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
              0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
              0.7229568362236023, 1.0)


def round_trip(weight, kind):
    """The float32 values that `weight` has when it is stored as "fp32", "int8" or "nf4"."""
    if kind == "fp32":
        return weight.float().clone()
    blocks = weight.float().reshape(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    if kind == "int8":
        values = torch.round(blocks / scale * 127) / 127
    elif kind == "nf4":
        levels = torch.tensor(NF4_LEVELS, device=weight.device)
        borders = (levels[1:] + levels[:-1]) / 2
        values = levels[torch.bucketize((blocks / scale).contiguous(), borders)]
    else:
        raise ValueError(f"unknown weight type {kind!r}: fp32, int8 or nf4")
    return (values * scale).reshape(weight.shape)


def block_weights(model):
    """The weights that Duet quantises on load: the linear layers of the decoder, not embedding, norms and biases."""
    return [module.weight for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and "lora_" not in name and "lm_head" not in name]


class Bases:
    """One model's base weights at several types; `use(kind)` puts them in place."""

    def __init__(self, model, kinds=("fp32", "int8", "nf4")):
        self.weights = block_weights(model)
        self.copies = {kind: [round_trip(w.data, kind) for w in self.weights] for kind in kinds}

    @torch.no_grad()
    def use(self, kind):
        torch._foreach_copy_([w.data for w in self.weights], self.copies[kind])
