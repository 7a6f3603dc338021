"""Measures methods against each other on the same questions: rows, then figures from the rows."""
