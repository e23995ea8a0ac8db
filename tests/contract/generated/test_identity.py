"""The same input of a create: the spelling never counts; name, weights and preset always do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from stackmgr.http.requests import RequestSchema
from stackmgr.stacks import configuration
from tests.contract.generated.strategies import chances, configurations, unlike, written

SCHEMA = RequestSchema("stack_create.json")

pairs_of_unlikes = configurations().flatmap(lambda document: st.tuples(st.just(document), unlike(document)))


def digest(body, spellings):
    return configuration.parse_create(SCHEMA.parse(body), spellings).digest()


@given(configurations(), chances, chances)
def test_two_writings_of_one_configuration_have_one_digest(spellings, document, first, second):
    assert digest(written(document, first), spellings) == digest(written(document, second), spellings)


@settings(max_examples=300)
@given(pairs_of_unlikes, chances)
def test_two_configurations_never_have_one_digest(spellings, documents, chance):
    first, second = (digest(written(document, chance), spellings) for document in documents)
    assert first != second


@settings(max_examples=40)
@given(configurations(), chances)
def test_another_writing_is_a_retry(make_client, document, chance):
    client = make_client()
    created = client.create(written(document, chance), "key")
    assert created.status_int == 201
    for _ in range(2):
        retried = client.create(written(document, chance), "key")
        assert (retried.status_int, retried.body) == (200, created.body)
    assert client.page().json["items"] == [created.json]


@settings(max_examples=40)
@given(pairs_of_unlikes, chances)
def test_another_configuration_is_a_conflict(make_client, documents, chance):
    client = make_client()
    first, second = (written(document, chance) for document in documents)
    created = client.create(first, "key")
    assert client.create(second, "key").status_int == 409
    assert client.create(first, "key").body == created.body
    assert client.page().json["items"] == [created.json]
