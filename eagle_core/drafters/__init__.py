"""Drafters: what proposes the tree. They change the speed, never the text."""
