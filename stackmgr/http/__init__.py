"""The HTTP interface, on Falcon."""
