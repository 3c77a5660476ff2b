"""From issues to findings: which are roots, what follows from them, and how a finding is worded."""
