"""The version, read by the build and by ``layoutcheck --version`` without importing anything else."""

__version__ = "0.1.0"
