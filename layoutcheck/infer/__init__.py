"""Inference: a layout for every value, and what stands against it."""
