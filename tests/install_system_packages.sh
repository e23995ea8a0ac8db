#!/bin/sh
# What the tests run and pip cannot bring: nginx, openssl, systemd-analyze, ip, and the oldest
# PostgreSQL.
#
# Does nothing, quietly, where they are there already, where there is no apt-get, or where we are not root:
# the tests that need them are then skipped, or fail if CI=true.  Starts no service and leaves none behind
# that would start later: they are wanted as programs only.
set -eu

# nginx is in /usr/sbin, which is not on everybody's PATH.
PATH="$PATH:/usr/sbin:/sbin"
packages=''
command -v nginx >/dev/null || packages="$packages nginx-light"
command -v openssl >/dev/null || packages="$packages openssl"
command -v systemd-analyze >/dev/null || packages="$packages systemd"
command -v ip >/dev/null || packages="$packages iproute2"
[ -x /usr/lib/postgresql/15/bin/initdb ] || packages="$packages postgresql-15"
[ -n "$packages" ] || exit 0
[ "$(id -u)" -eq 0 ] || exit 0
command -v apt-get >/dev/null || exit 0

# Debian asks policy-rc.d before it starts what it installs; 101 means no.  An existing one stays.
policy=/usr/sbin/policy-rc.d
log="$(mktemp)"
made=''
trap 'rm -f "$log" $made' EXIT
case "$packages" in
    *postgresql*)
        # The package would make a cluster, unless told not to before it is there.
        made=/etc/postgresql-common/createcluster.d/stackmgr-tests.conf
        mkdir -p "${made%/*}"
        echo 'create_main_cluster = false' >"$made"
        ;;
esac
if [ ! -e "$policy" ]; then
    made="$made $policy"
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

install() {
    # shellcheck disable=SC2086  # a word for each package
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $packages \
        </dev/null >>"$log" 2>&1
}
# The lists of packages may be missing or out of date: then once more with new ones.
if ! install && ! { apt-get update --quiet </dev/null >>"$log" 2>&1 && install; }; then
    cat "$log" >&2
    echo "could not install:$packages" >&2
    exit 0
fi
case "$packages" in
    *nginx*) ! command -v systemctl >/dev/null || systemctl --quiet disable nginx.service >/dev/null 2>&1 || : ;;
esac
