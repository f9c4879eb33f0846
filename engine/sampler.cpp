// Sampling rules.
