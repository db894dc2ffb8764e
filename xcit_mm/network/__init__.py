"""The network: XCiT, its layers and operators, and their fast forms."""

from .xcit import XCiT

__all__ = ['XCiT']
