from .xcit import XCiT

__all__ = ['XCiT']
