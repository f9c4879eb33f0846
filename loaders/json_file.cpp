// JSON with bounds.
