// BASE_URL=… API_KEY=… node client.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

const ATTEMPTS = 5;
const TOKEN = "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9";

const request = (method, path, body, headers = {}) =>
  fetch(process.env.BASE_URL + path, {
    method,
    body: body && JSON.stringify(body),
    headers: { Authorization: `Bearer ${process.env.API_KEY}`, "Content-Type": "application/json", ...headers },
    signal: AbortSignal.timeout(30_000),
  });

const isFinal = (response) => response.status < 500 && response.status !== 429;

// Wait for Retry-After, or else exponentially longer, with jitter.
const pause = (attempt, response) => {
  const given = response?.headers.get("Retry-After");
  return sleep(given ? Number(given) * 1000 : Math.random() * 500 * 2 ** attempt);
};

// Send a request that is safe to repeat, until a response arrives that is not to be retried.
async function send(...args) {
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await request(...args);
      if (isFinal(response) || attempt === ATTEMPTS - 1) return response;
    } catch (error) {
      if (attempt === ATTEMPTS - 1) throw error;
    }
    await pause(attempt, response);
  }
}

async function json(response) {
  const body = await response.json();
  if (!response.ok) throw new Error(`${body.code}: ${body.message} (${body.request_id})`);
  return body;
}

const create = (key, name) =>
  send(
    "POST",
    "/manager/stacks",
    { name, allocation: [{ token_address: TOKEN, weight_bps: 10000 }], schedule: { preset: "weekly" } },
    { "Idempotency-Key": key },
  );

async function* allStacks() {
  const query = new URLSearchParams({ limit: "2" });
  for (;;) {
    const page = await json(await send("GET", `/manager/stacks?${query}`));
    yield* page.items;
    if (page.next_cursor === null) return;
    query.set("cursor", page.next_cursor);
  }
}

// Update a stack.  In `changes`, an allocation is sorted and lowercase, as in responses.
async function update(id, changes) {
  const path = `/manager/stacks/${id}`;
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const response = await request("PATCH", path, changes).catch(() => null);
    if (response && isFinal(response)) return json(response);
    await pause(attempt, response);
    if ([429, 503].includes(response?.status)) continue; // nothing has changed
    // The outcome is unknown.
    const current = await json(await send("GET", path));
    if (Object.entries(changes).every(([field, value]) => isDeepStrictEqual(current[field], value))) return current;
  }
  throw new Error("the update was not made");
}

// Store the key with the intended stack before the first attempt, and use it for every retry.
const key = randomUUID();
const stack = await json(await create(key, "Growth"));
for (const name of ["Income", "Balanced"]) await json(await create(randomUUID(), name));
const names = [];
for await (const found of allStacks()) names.push(found.name);
const conflict = (await (await create(key, "Other")).json()).code;
const updated = await update(stack.id, { schedule: { preset: "monthly" } });
console.log(JSON.stringify({ id: stack.id, names, conflict, preset: updated.schedule.preset }));
