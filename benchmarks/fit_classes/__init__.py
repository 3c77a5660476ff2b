"""The kernel classes that fit_hardware.py fits: which rows, which constants, which structure.

The structures (tile sizes, knees, which term overlaps which) were chosen by hand, once for a family of
parts, while looking at whole collections; the constants are fitted on half of the sites.
"""
