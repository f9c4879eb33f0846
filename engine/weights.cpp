// Layout of one matrix in memory.
