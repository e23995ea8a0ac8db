"""What every operation returns for a key that is not accepted."""

from tests.support.examples import configuration


def every_operation(client, stack_id):
    yield client.create(configuration(), key="another")
    yield client.update(stack_id, {"name": "Other"})
    yield client.get(stack_id)
    yield client.page()


def check(known, contents, status, retry_after=None):
    client, stack_id = known
    before = contents()
    for response in every_operation(client, stack_id):
        assert response.status_int == status
        assert response.headers.get("Retry-After") == retry_after
        assert client.statements == []
    assert contents() == before
