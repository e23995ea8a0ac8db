"""What is checked: the clients of two managers of a deployment, and its whitelist."""

from dataclasses import dataclass
from typing import Any

import urllib3
from webtest.response import TestResponse

from stackmgr.stacks.whitelist import Whitelist
from tests.support.client import ContractClient

_TIMEOUT_SECONDS = 30.0


class HttpClient(ContractClient):
    """One manager's view of the deployment at *base*."""

    def __init__(self, base: str, key: str) -> None:
        super().__init__(key)
        self._base = base.rstrip("/")
        self._http = urllib3.PoolManager(retries=False, timeout=_TIMEOUT_SECONDS)

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> TestResponse:
        received = self._http.request(method, self._base + path, body=body, headers=headers, redirect=False)
        return TestResponse(
            status=f"{received.status} {received.reason}",
            headerlist=list(received.headers.items()),
            body=received.data,
        )

    def created(self, document: Any) -> Any:
        """Create a stack and return it."""
        response = self.create(document)
        assert response.status_int == 201, f"a create: status {response.status_int}, not 201"
        return response.json


@dataclass(frozen=True)
class Deployment:
    """What is tested."""

    first: HttpClient
    second: HttpClient
    listed: Whitelist

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a valid create body, with other fields in place of its own."""
        allocation = self.allocation(6000, 4000)
        return {"name": "conformance", "allocation": allocation, "schedule": {"preset": "weekly"}} | fields

    def allocation(self, *weights: int) -> list[dict[str, Any]]:
        """Return an allocation of the first tokens of the whitelist with these weights."""
        pairs = zip(sorted(self.listed.tokens), weights, strict=False)
        return [{"token_address": address, "weight_bps": weight} for address, weight in pairs]
