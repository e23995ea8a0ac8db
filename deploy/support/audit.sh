#!/bin/sh
# Run audit.sql for one 256th of the managers after the other, each in a transaction of its own, with psql's arguments:
#
#     sh audit.sh -d stackmgr
#     sh audit.sh -d stackmgr -v archived=yes
#
# Prints the findings, and its progress on standard error. Exits with 3 after findings; stops at an error, with psql's
# status. A revision id that two managers have is found only where both are in one part.
status=0
for part in $(seq 0 255); do
    first=$(printf '%02x' "$part")
    printf 'part %d of 256\n' "$((part + 1))" >&2
    psql -X -At -v first="${first}000000-0000-0000-0000-000000000000" \
        -v last="${first}ffffff-ffff-ffff-ffff-ffffffffffff" "$@" -f "$(dirname "$0")/audit.sql" || status=$?
    [ "$status" = 0 ] || [ "$status" = 3 ] || exit "$status"
done
exit "$status"
