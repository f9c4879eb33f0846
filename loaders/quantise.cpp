// Quantising to blocks.
