// PEFT adapters.
