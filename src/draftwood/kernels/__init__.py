"""Small native kernels, each beside a plain torch twin."""
