"""The errors of models: which classes are confused, and what the errors of detectors cost."""
