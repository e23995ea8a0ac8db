#!/bin/sh
# Take a base backup, verify it, and delete the oldest ones with the WAL that only they need. Run it each day, by cron
# or a timer, with PostgreSQL's programs in PATH, as a login with REPLICATION (PGHOST, PGUSER, ~/.pgpass).
#
#     backup.sh BACKUPS ARCHIVE KEEP METRICS
#
# BACKUPS is a folder on another machine than the server, ARCHIVE that of archive_wal.sh, KEEP the number of backups that
# stay. METRICS is a file for node_exporter's textfile collector: the time of the last verified backup.
set -eu
umask 077

backups=$1 archive=$2 keep=$3 metrics=$4
new=$backups/$(date -u +%Y-%m-%dT%H%M%S)

rm -rf "$backups"/*.part
pg_basebackup -D "$new.part" --checkpoint=fast
pg_verifybackup --quiet "$new.part"
mv "$new.part" "$new"
sync "$backups"

echo "stackmgr_backup_timestamp_seconds $(date +%s)" > "$metrics.part"
chmod 644 "$metrics.part"
mv "$metrics.part" "$metrics"

ls -d "$backups"/[0-9]* | sort | head -n "-$keep" | while read -r old; do
    rm -r "$old"
done
oldest=$(ls -d "$backups"/[0-9]* | sort | head -n 1)
pg_archivecleanup -x .gz "$archive" "$(sed -n 's/^START WAL LOCATION: .*(file \(.*\))$/\1/p' "$oldest/backup_label")"
