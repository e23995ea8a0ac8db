# For the next page add: --data-urlencode "cursor=<next_cursor>"
curl --fail-with-body --get "$BASE_URL/manager/stacks" \
  --header "Authorization: Bearer $API_KEY" \
  --data limit=50
