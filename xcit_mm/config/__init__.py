"""Read a config, adapt it, and check it before a run."""
