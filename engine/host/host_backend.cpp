// Steps on the CPU.
