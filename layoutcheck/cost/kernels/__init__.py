"""One kernel class a file. Each has ``work`` (exact counts) and ``time_us`` (microseconds on a hardware)."""
