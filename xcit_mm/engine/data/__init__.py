"""Load the data of a run: in an order that can be resumed, in processes that can fail."""
