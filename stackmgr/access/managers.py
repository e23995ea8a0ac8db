"""The record of a manager: its first authenticated request creates it, an operator rebinds it."""

import logging
from uuid import uuid4

from stackmgr.access.verifiers import Identity
from stackmgr.database import statements
from stackmgr.database.session import Session
from stackmgr.errors import BindingConflict
from stackmgr.monitoring.logs import RateLimitFilter
from stackmgr.reasons import ReasonSlug

_FIND = statements.load("manager_find")
_INSERT = statements.load("manager_insert")

_log = logging.getLogger("stackmgr.managers")
# A client may send one request after the other under a conflicting binding.
_log.addFilter(RateLimitFilter(by_arguments=True))


def look_up(session: Session, identity: Identity) -> str | None:
    """Return the id of the manager that *identity* is bound to, or None if neither half is bound.

    Raises BindingConflict if a saved binding has one half in common, and logs both at intervals.
    """
    found = session.rows(_FIND, identity.parameters(), max_rows=2)
    if not found:
        return None
    manager_id: str
    manager_id, *saved = found[0]
    # Both ids are unique: no other binding has one of them.
    if saved == [identity.external_id, identity.identity_id]:
        return manager_id
    # Ids are not secrets, and without both sides of the conflict it cannot be repaired.
    _log.error(
        "binding conflict: verified external id %s with identity id %s, but saved is %s; "
        "see 'stackmgr managers show %s'",
        identity.external_id,
        ascii(identity.identity_id),
        " and ".join(f"external id {external} with identity id {own!a}" for _, external, own in found),
        identity.external_id,
    )
    raise BindingConflict(ReasonSlug.MANAGER_BINDING)


def bind(session: Session, identity: Identity) -> str:
    """Return the id of the manager that *identity* is bound to; bind it if neither half is known.

    Raises BindingConflict as `look_up` does.
    """
    manager_id = look_up(session, identity)
    while manager_id is None:
        inserted = session.row(_INSERT, identity.parameters() | {"manager_id": str(uuid4())})
        # Without a row, another first request won the race; its binding counts, if not erased.
        manager_id = look_up(session, identity) if inserted is None else inserted[0]
    return manager_id
