// Layout of adapters inside a slot.
