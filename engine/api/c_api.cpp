// The C interface.
