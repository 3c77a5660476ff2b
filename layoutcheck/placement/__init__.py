"""Placement: which conversions a contract needs, where they stand, and the program with them written in."""
