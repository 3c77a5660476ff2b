"""What a kernel or a collective costs: closed formulas over sizes, and hardware as data.

Every formula here takes integers, numpy arrays or sympy symbols alike (see :mod:`layoutcheck.cost.algebra`);
times are microseconds. Nothing in this package imports numpy, sympy or scipy before it is needed.
"""
