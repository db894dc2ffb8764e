"""CUDA graphs of the parts of a model that are functions of tensors of a fixed size.

A GPU often waits for Python to start the next kernel. A graph holds all kernels of a forward or a
backward pass and starts them at once. ``model_parts`` finds the parts of a model, ``graphed_part``
decides for each call whether it is captured, replayed or left as it is, ``captured`` holds the
static tensors of one size, and ``recorder`` records the graphs.
"""

from .model_parts import GraphedModel

__all__ = ['GraphedModel']
