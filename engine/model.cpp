// Model specs: checks, tensor list, rotary frequencies.
