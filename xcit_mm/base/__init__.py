"""What every other folder builds on: errors, files, processes, devices and progress."""
