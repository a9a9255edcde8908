"""Networks as models with a cache, on stock operations, int8 kernels and accelerators."""
