"""Small native kernels, each with a plain torch version for parity tests."""
