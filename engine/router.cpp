// The fast model first, then the deep one.
