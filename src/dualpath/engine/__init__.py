"""Runs a model over sequences of a dual path. `hf` and `load` hold all that touches transformers."""
