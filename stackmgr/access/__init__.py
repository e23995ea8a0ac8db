"""Authentication: API keys, their verifiers, and the managers they belong to."""
