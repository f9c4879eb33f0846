// Which family's template a checkpoint has.
