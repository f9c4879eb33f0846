// From options to a running engine.
