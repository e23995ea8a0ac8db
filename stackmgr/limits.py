"""Constants of the specification that several modules need."""

# Section 8: the largest request body.
BODY_LIMIT_BYTES = 262144

# Section 2.3.
PRESETS = ("hourly", "daily", "weekly", "monthly")

# RFC 9562 section 4, in the lowercase form that the service returns.
CANONICAL_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
