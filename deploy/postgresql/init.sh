#!/bin/sh
# Run once by the official PostgreSQL image on an empty data directory: runs roles.sql, then sets the passwords of
# the two logins from the secrets of compose.yaml, without logging them.
set -eu

psql -X -q -d postgres -f /stackmgr/roles.sql
psql -X -q -d postgres -v ON_ERROR_STOP=1 <<'SQL'
\set operator `cat /run/secrets/operator_password`
\set service `cat /run/secrets/service_password`
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
ALTER ROLE stackmgr_operator PASSWORD :'operator';
ALTER ROLE stackmgr_service PASSWORD :'service';
SQL
