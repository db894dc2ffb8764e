"""The tokens of an image of any size: passes over tiles, shards and stores."""
