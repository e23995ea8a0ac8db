const url = new URL(`${process.env.BASE_URL}/manager/stacks?limit=50`);
for (;;) {
  const response = await fetch(url, {
    headers: { Authorization: `Bearer ${process.env.API_KEY}` },
  });
  const page = await response.json();
  if (!response.ok) throw new Error(page.message);
  for (const stack of page.items) console.log(stack.id, stack.name);
  if (page.next_cursor === null) break;
  url.searchParams.set("cursor", page.next_cursor);
}
