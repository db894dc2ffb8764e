"""The network: faster forms of its layers."""
