"""The algebra of symbolic sizes; `layoutcheck.symbols` is its public face."""
