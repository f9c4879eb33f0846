// Threads of the host backend.
