"""Test support: graph builders, faults, mutations and transforms."""
