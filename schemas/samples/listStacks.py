import os

import httpx

parameters = {"limit": 50}
while True:
    response = httpx.get(
        f"{os.environ['BASE_URL']}/manager/stacks",
        headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},
        params=parameters,
    )
    response.raise_for_status()
    page = response.json()
    for stack in page["items"]:
        print(stack["id"], stack["name"])
    if page["next_cursor"] is None:
        break
    parameters["cursor"] = page["next_cursor"]
