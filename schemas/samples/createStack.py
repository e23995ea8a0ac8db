import os

import httpx

response = httpx.post(
    f"{os.environ['BASE_URL']}/manager/stacks",
    headers={
        "Authorization": f"Bearer {os.environ['API_KEY']}",
        # The same key for every retry of this stack.
        "Idempotency-Key": os.environ["IDEMPOTENCY_KEY"],
    },
    json={
        "name": "Growth",
        "allocation": [
            {"token_address": "0xaF3D76f1834A1d425780943C99Ea8A608f8a93f9", "weight_bps": 5000},
            {"token_address": "0x86923f96303D656E4aa86D9d42D1e57ad2023fdC", "weight_bps": 3000},
            {"token_address": "0x12f190a9f9d7d37a250758b26824b97ce941bf54", "weight_bps": 2000},
        ],
        "schedule": {"preset": "weekly"},
    },
)
response.raise_for_status()
print(response.json())
