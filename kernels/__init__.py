"""Triton kernels with a torch path for CPUs: one op per file, its definition beside it."""
