"""Issues that are seen in a solved typing, and where they come from."""
