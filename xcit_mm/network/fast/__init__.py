"""Faster forms of a block and of a stack of convolutions, with the same values.

A form reads the layers as weights: it computes several of them in one operation, in place, or keeps
less for the backward pass. :mod:`.cpu` computes with PyTorch's operators, and :mod:`.gpu` with the
kernels in :mod:`.kernels`. :func:`.fast_form` chooses.
"""
