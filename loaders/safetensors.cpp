// safetensors files.
