"""Faster forms of a block and of a stack of convolutions, with the same values.

A form reads the weights of the layers instead of calling them. It computes several layers in one
operation or in place, or keeps less for the backward pass. :mod:`.cpu` uses PyTorch's operators,
and :mod:`.gpu` uses the kernels in :mod:`.kernels`. :func:`.fast_form` chooses between them.
"""
