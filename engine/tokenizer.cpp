// Run time of tokenizers.
