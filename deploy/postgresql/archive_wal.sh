#!/bin/sh
# archive_command: compress a WAL segment into the archive, and return once it is on its disk.
#
#     archive_command = 'sh /usr/local/lib/stackmgr/archive_wal.sh %p %f ARCHIVE'
#     restore_command = 'gzip -dc ARCHIVE/%f.gz > %p'
#
# After a crash PostgreSQL may archive a segment again: an equal one is in place, another one is never replaced.
# Compressed, because archive_timeout closes segments that are nearly empty.
set -eu
umask 077

kept=$3/$2.gz
if [ -e "$kept" ]; then
    gzip -dc "$kept" | cmp -s - "$1"
    exit
fi
gzip -1 -c "$1" > "$kept.part"
sync "$kept.part"
mv "$kept.part" "$kept"
sync "$3"
