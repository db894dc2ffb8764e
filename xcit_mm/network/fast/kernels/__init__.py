"""The Triton kernels of the network on a GPU, and the functions that launch them."""
