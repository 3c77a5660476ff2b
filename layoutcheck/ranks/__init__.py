"""Running typed programs on ranks: what a layout claims, made executable.

`denote` says what rank values a layout stands for, `interpreter` runs a graph on p ranks in lockstep,
`reference` holds the fused ops' definitions, `twin` runs the same program on one device, `verify` compares
the two, `distributed`, `processes` and `launch` run the ranks as processes, `counterexample` finds inputs on
which a finding shows. All of it needs torch, which nothing outside of this package imports.
"""
