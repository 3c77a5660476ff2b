"""Candidate repairs of an issue, with their price; each is tried by typing again."""
