const response = await fetch(`${process.env.BASE_URL}/manager/stacks/${process.env.STACK_ID}`, {
  method: "PATCH",
  headers: {
    Authorization: `Bearer ${process.env.API_KEY}`,
    "Content-Type": "application/json",
  },
  body: JSON.stringify({ schedule: { preset: "monthly" } }),
});
if (!response.ok) throw new Error((await response.json()).message);
console.log(await response.json());
