const response = await fetch(`${process.env.BASE_URL}/manager/stacks/${process.env.STACK_ID}`, {
  headers: { Authorization: `Bearer ${process.env.API_KEY}` },
});
if (!response.ok) throw new Error((await response.json()).message);
console.log(await response.json());
