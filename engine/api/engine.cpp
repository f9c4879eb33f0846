// Engine.
