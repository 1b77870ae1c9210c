"""Triton kernels, each beside its torch reference in the module of the same name one level up."""
