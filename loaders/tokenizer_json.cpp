// tokenizer.json.
