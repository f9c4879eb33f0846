// Random checkpoints of real shapes.
