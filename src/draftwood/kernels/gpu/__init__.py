"""Triton kernels for NVIDIA GPUs, each beside a plain torch twin of the same signature. Imported only where a GPU runs a
model, and by tests, through Triton's interpreter."""
