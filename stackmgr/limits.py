"""The limits of the contract.

Schemas and migrations state those of a stack too, in their own languages; tests compare them.
"""

BODY_LIMIT_BYTES = 262144

# Of size lines and extensions in a chunked body: 3,276 chunks of one byte, decoded in 3.4 ms.
FRAMING_LIMIT_BYTES = 16384

# From the first byte of a request to its last.
REQUEST_SECONDS = 10

# nginx's proxy_read_timeout: the queue, the verifier and the database together must take less.
LONGEST_REQUEST_SECONDS = 30

# The exact number of tokens in the whitelist, the largest of an allocation, and their network.
TOKEN_COUNT = 30
CHAIN_ID = 4663

# A weight is 0 to TOTAL_BPS; the weights of an allocation total TOTAL_BPS.
TOTAL_BPS = 10000

DEFAULT_PAGE_SIZE = 25
MAX_PAGE_SIZE = 100

# UTF-8 bytes of the names on a page of several stacks: up to 2 ms of processor time.
PAGE_NAME_BYTES = 262144

# Of an Idempotency-Key: what PostgreSQL's index on (manager_id, idempotency_key) holds.
LONGEST_KEY_BYTES = 2676

# Characters of a verifier's id of a manager.
LONGEST_IDENTITY_ID = 255

# RFC 9562 section 4, in the lowercase form that the service returns.
CANONICAL_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
