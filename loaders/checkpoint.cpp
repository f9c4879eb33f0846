// Checkpoint folders as weight sources.
