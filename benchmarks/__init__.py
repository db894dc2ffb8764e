"""The time and memory of XCiT, compared with timm's XCiT and with other backbones."""
