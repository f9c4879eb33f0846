// bitsandbytes 4-bit checkpoints.
