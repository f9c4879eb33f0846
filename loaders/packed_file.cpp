// Packed files.
