"""The mathematics of the network: two forms of the attention, and moments of tokens."""
