#!/bin/sh
# A client of the API with curl and jq: BASE_URL=… API_KEY=… sh curl.sh
set -eu

# Retry a request that is safe to repeat, after a lost response and after 429, 500 and 503.
request() {
    curl --silent --show-error --retry 5 --retry-all-errors --max-time 30 \
        --header "Authorization: Bearer $API_KEY" --header "Content-Type: application/json" "$@"
}

create() { # $1 Idempotency-Key, $2 name
    request --fail-with-body "$BASE_URL/manager/stacks" --header "Idempotency-Key: $1" --data "$(jq --null-input --arg name "$2" '{
        name: $name,
        allocation: [{token_address: "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9", weight_bps: 10000}],
        schedule: {preset: "weekly"}
    }')"
}

# Store the key with the intended stack before the first attempt, and use it for every retry.
key=$(cat /proc/sys/kernel/random/uuid)
stack=$(create "$key" "Growth")
id=$(printf %s "$stack" | jq --raw-output .id)
create "$(cat /proc/sys/kernel/random/uuid)" "Income" >/dev/null
create "$(cat /proc/sys/kernel/random/uuid)" "Balanced" >/dev/null

# Page through all stacks.
cursor=''
names=''
while :; do
    page=$(request --fail-with-body --get "$BASE_URL/manager/stacks" --data limit=2 ${cursor:+--data-urlencode "cursor=$cursor"})
    names="$names$(printf %s "$page" | jq --raw-output '.items[] | .name + " "' | tr -d '\n')"
    cursor=$(printf %s "$page" | jq --raw-output '.next_cursor // empty')
    [ -n "$cursor" ] || break
done

# The same key with different input is a conflict.  --retry-all-errors is not for an error to be fixed first.
conflict=$(curl --silent --header "Authorization: Bearer $API_KEY" --header "Content-Type: application/json" \
    --header "Idempotency-Key: $key" --data "$(printf %s "$stack" | jq '{name: "Other", allocation, schedule}')" \
    "$BASE_URL/manager/stacks" | jq --raw-output .code)

# An update is not idempotent: after a lost response, read before sending it again.
update() {
    curl --silent --fail-with-body --max-time 30 --header "Authorization: Bearer $API_KEY" \
        --header "Content-Type: application/json" --request PATCH "$BASE_URL/manager/stacks/$id" \
        --data '{"schedule": {"preset": "monthly"}}' >/dev/null
}
until update; do
    sleep 1
    preset=$(request --fail-with-body "$BASE_URL/manager/stacks/$id" | jq --raw-output .schedule.preset)
    [ "$preset" != monthly ] || break
done
preset=$(request --fail-with-body "$BASE_URL/manager/stacks/$id" | jq --raw-output .schedule.preset)

jq --null-input --compact-output --arg id "$id" --arg names "$names" --arg conflict "$conflict" --arg preset "$preset" \
    '{id: $id, names: ($names | rtrimstr(" ") | split(" ")), conflict: $conflict, preset: $preset}'
