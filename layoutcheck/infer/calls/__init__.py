"""How one call is typed: layouts of operands in, layouts of outputs, issues and wants out. Nothing here knows a node."""
