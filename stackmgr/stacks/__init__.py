"""What is stored: stacks, the rules of their configuration, and the whitelist."""
