"""The memory of a rank: every byte has a line, with its formula."""
