-- role_assume: assume a role, for the rest of the session or of the transaction.
-- params:  role text, is_local boolean
-- returns: one row (role)
-- index:   none
-- locks:   none
-- called by: operate.operator.assume
-- why:     a failure has the SQLSTATE of SET ROLE: 42501 if the login may not, 22023 if there is no such role.
SELECT pg_catalog.set_config('role', %(role)s::text, %(is_local)s::boolean) AS role;
