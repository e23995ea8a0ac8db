"""The operator's commands, one module each."""
