// config.json to a model spec.
