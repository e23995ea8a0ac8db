"""Stacks, the rules of their configuration, and the whitelist."""
