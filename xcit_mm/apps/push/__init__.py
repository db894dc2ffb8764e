"""Files for the Hugging Face hub: weights, a config that is data, and a model card."""
