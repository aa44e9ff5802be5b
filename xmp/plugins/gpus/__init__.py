"""Runtimes of GPUs and accelerators of other vendors: AMD's, Intel's, AWS's."""
