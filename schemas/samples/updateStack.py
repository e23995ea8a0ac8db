import os

import httpx

response = httpx.patch(
    f"{os.environ['BASE_URL']}/manager/stacks/{os.environ['STACK_ID']}",
    headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},
    json={"schedule": {"preset": "monthly"}},
)
response.raise_for_status()
print(response.json())
