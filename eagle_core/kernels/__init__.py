"""Products and attention for a few rows at a time, compiled where they run."""
