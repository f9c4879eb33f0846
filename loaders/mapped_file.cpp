// Files mapped into memory.
