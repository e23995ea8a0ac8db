#!/bin/sh
# For the official image of PostgreSQL, once, on an empty data directory: roles.sql, then the passwords of the
# two logins from the files of compose.yaml's secrets. Their change is not logged.
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
