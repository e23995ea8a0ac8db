// BASE_URL=… API_KEY=… node client.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

const ATTEMPTS = 5;
const LONGEST_WAIT = 60_000; // milliseconds
const TOKEN = "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9";

const request = (method, path, body, headers = {}) =>
  fetch(process.env.BASE_URL + path, {
    method,
    body: body && JSON.stringify(body),
    headers: { Authorization: `Bearer ${process.env.API_KEY}`, "Content-Type": "application/json", ...headers },
    signal: AbortSignal.timeout(30_000),
  });

const isFinal = (response) => response.status < 500 && response.status !== 429;

// The milliseconds of Retry-After, which may be a date, or 0 if it is missing or malformed.
function retryAfter(response) {
  const given = response?.headers.get("Retry-After") ?? "";
  if (/^[0-9]+$/.test(given)) return Number(given) * 1000;
  const isDate = /^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/.test(given);
  return (isDate && Date.parse(given) - Date.now()) || 0;
}

// Wait for Retry-After, but exponentially longer at least, with jitter; return whether to try again.
async function pause(attempt, response) {
  const milliseconds = Math.max(retryAfter(response), Math.random() * 500 * 2 ** attempt);
  const isNext = attempt < ATTEMPTS - 1 && milliseconds <= LONGEST_WAIT;
  if (isNext) await sleep(milliseconds);
  return isNext;
}

// Send a request that is safe to repeat, until a response is final or a wait is too long.
async function send(...args) {
  for (let attempt = 0; ; attempt++) {
    let response;
    try {
      response = await request(...args);
    } catch (error) {
      if (await pause(attempt)) continue;
      throw error;
    }
    if (isFinal(response) || !(await pause(attempt, response))) return response;
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
  for (let attempt = 0; ; attempt++) {
    const response = await request("PATCH", path, changes).catch(() => null);
    if (response && isFinal(response)) return json(response);
    const isNext = await pause(attempt, response);
    if (![429, 503].includes(response?.status)) { // the outcome is unknown
      const current = await json(await send("GET", path));
      if (Object.entries(changes).every(([field, value]) => isDeepStrictEqual(current[field], value))) return current;
    }
    if (!isNext) throw new Error("the update was not made");
  }
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
