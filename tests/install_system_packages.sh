#!/bin/sh
# Installs the programs that tests/run needs and pip does not provide; with --all, those of tests/run --all too (400 MB).
#
# Does nothing if they are installed, without apt-get, or as another user than root: the tests that need them
# are then skipped, or fail if CI=true.  Starts and enables no service.
set -eu

# nginx is in /usr/sbin, which is not on every PATH.
PATH="$PATH:/usr/sbin:/sbin"
packages=''
need() {
    command -v "$1" >/dev/null || packages="$packages $2"
}
need nginx nginx-light
need openssl openssl
need systemd-socket-activate systemd
need jq jq
need promtool prometheus
need pgbouncer pgbouncer
if [ "${1:-}" = --all ]; then
    need chromium chromium
    need chromedriver chromium-driver
    need buildah buildah
    need curl curl
    need debootstrap 'debootstrap debian-archive-keyring'
    need node nodejs
    need npm npm
    need wrk wrk
    need pgbackrest pgbackrest
    need /usr/lib/postgresql/15/bin/initdb postgresql-15
fi
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
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install --yes --quiet --no-install-recommends "$@" \
        </dev/null >>"$log" 2>&1
}
# If the package lists are missing or out of date, update them and retry; then without what the archive does not have.
# shellcheck disable=SC2086  # a word for each package
if ! install $packages && ! { apt-get update --quiet </dev/null >>"$log" 2>&1 && install $packages; }; then
    missing=''
    for package in $packages; do
        install "$package" || missing="$missing $package"
    done
    [ -z "$missing" ] || { cat "$log"; echo "could not install:$missing"; } >&2
fi
command -v systemctl >/dev/null || exit 0
for service in nginx prometheus pgbouncer; do
    case "$packages" in
        *"$service"*) systemctl --quiet disable "$service.service" >/dev/null 2>&1 || : ;;
    esac
done
