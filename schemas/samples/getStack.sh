curl --fail-with-body "$BASE_URL/manager/stacks/$STACK_ID" \
  --header "Authorization: Bearer $API_KEY"
