curl --fail-with-body --request PATCH "$BASE_URL/manager/stacks/$STACK_ID" \
  --header "Authorization: Bearer $API_KEY" \
  --header "Content-Type: application/json" \
  --data '{"schedule": {"preset": "monthly"}}'
