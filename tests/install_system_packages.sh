#!/bin/sh
# Installs the programs the tests need and pip does not provide: nginx, openssl, systemd-analyze, ip, chromium,
# buildah, debootstrap, jq, node with npm, promtool, PgBouncer, and the oldest supported PostgreSQL.
#
# Does nothing if they are installed, without apt-get, or as another user than root: the tests that need them
# are then skipped, or fail if CI=true.  Starts and enables no service.
set -eu

# nginx is in /usr/sbin, which is not on every PATH.
PATH="$PATH:/usr/sbin:/sbin"
packages=''
command -v nginx >/dev/null || packages="$packages nginx-light"
command -v openssl >/dev/null || packages="$packages openssl"
command -v systemd-analyze >/dev/null || packages="$packages systemd"
command -v ip >/dev/null || packages="$packages iproute2"
command -v chromium >/dev/null && command -v chromedriver >/dev/null || packages="$packages chromium chromium-driver"
command -v buildah >/dev/null || packages="$packages buildah"
command -v jq >/dev/null || packages="$packages jq"
command -v node >/dev/null || packages="$packages nodejs"
command -v npm >/dev/null || packages="$packages npm"
command -v debootstrap >/dev/null || packages="$packages debootstrap debian-archive-keyring"
command -v promtool >/dev/null || packages="$packages prometheus"
command -v pgbouncer >/dev/null || packages="$packages pgbouncer"
[ -x /usr/lib/postgresql/15/bin/initdb ] || packages="$packages postgresql-15"
[ -n "$packages" ] || exit 0
[ "$(id -u)" -eq 0 ] || exit 0
command -v apt-get >/dev/null || exit 0

# With a policy-rc.d that returns 101, Debian starts no installed service.  An existing one is kept.
policy=/usr/sbin/policy-rc.d
log="$(mktemp)"
made=''
trap 'rm -f "$log" $made' EXIT
case "$packages" in
    *postgresql*)
        # Keeps the package from creating a cluster.
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

echo "installing$packages (first run only) ..." >&2
install() {
    # shellcheck disable=SC2086  # a word for each package
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $packages \
        </dev/null >>"$log" 2>&1
}
# If the package lists are missing or out of date, update them and retry.
if ! install && ! { apt-get update --quiet </dev/null >>"$log" 2>&1 && install; }; then
    cat "$log" >&2
    echo "could not install:$packages" >&2
    exit 0
fi
command -v systemctl >/dev/null || exit 0
for service in nginx prometheus pgbouncer; do
    case "$packages" in
        *"$service"*) systemctl --quiet disable "$service.service" >/dev/null 2>&1 || : ;;
    esac
done
