"""The command lines, and what they have in common (cli.py)."""
