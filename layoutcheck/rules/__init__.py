"""The rule notation and the rule book."""
