"""Small trained drafters that ship with the package: one safetensors file per kind and target."""
