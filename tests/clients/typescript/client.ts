// A typed client of the API: types by openapi-typescript, requests by openapi-fetch.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Stack = components["schemas"]["Stack"];
type StackCreate = components["schemas"]["StackCreate"];
type StackUpdate = components["schemas"]["StackUpdate"];

const RETRIED = new Set([429, 500, 503]);
const ATTEMPTS = 5;
const api = createClient<paths>({
  baseUrl: process.env.BASE_URL,
  headers: { Authorization: `Bearer ${process.env.API_KEY}` },
});

// Wait exponentially longer, with jitter.
const pause = (attempt: number) => sleep(Math.random() * 100 * 2 ** attempt);

// Send a request that is safe to repeat, until a response arrives that is not to be retried.
async function retried<T extends { response: Response }>(send: () => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      const result = await send();
      if (!RETRIED.has(result.response.status) || attempt === ATTEMPTS - 1) return result;
    } catch (error) {
      if (attempt === ATTEMPTS - 1) throw error;
    }
    await pause(attempt);
  }
}

function data<T>(result: { data?: T; error?: components["schemas"]["ErrorObject"] }): T {
  if (result.error) throw new Error(`${result.error.code}: ${result.error.message} (${result.error.request_id})`);
  return result.data as T;
}

const configuration = (name: string): StackCreate => ({
  name,
  allocation: [{ token_address: "0xaf3d76f1834a1d425780943c99ea8a608f8a93f9", weight_bps: 10000 }],
  schedule: { preset: "weekly" },
});

const create = (key: string, name: string) =>
  retried(() =>
    api.POST("/manager/stacks", {
      params: { header: { "Idempotency-Key": key } },
      body: configuration(name),
    }),
  );

const get = async (id: string): Promise<Stack> =>
  data(await retried(() => api.GET("/manager/stacks/{id}", { params: { path: { id } } })));

async function* allStacks(): AsyncGenerator<Stack> {
  let cursor: string | undefined;
  do {
    const query = { limit: 2, ...(cursor && { cursor }) };
    const page = data(await retried(() => api.GET("/manager/stacks", { params: { query } })));
    yield* page.items;
    cursor = page.next_cursor ?? undefined;
  } while (cursor);
}

// Update once: after a lost response, retry only if no revision was added since `stack` was read.
async function update(stack: Stack, changes: StackUpdate): Promise<Stack> {
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const result = await api
      .PATCH("/manager/stacks/{id}", { params: { path: { id: stack.id } }, body: changes })
      .catch(() => undefined);
    if (result && !RETRIED.has(result.response.status)) return data(result);
    await pause(attempt);
    const current = await get(stack.id);
    if (current.current_revision_id !== stack.current_revision_id) return current;
  }
  throw new Error("the update was not committed");
}

// Store the key with the intended stack before the first attempt, and use it for every retry.
const key = randomUUID();
const stack = data(await create(key, "Growth"));
for (const name of ["Income", "Balanced"]) data(await create(randomUUID(), name));
const names: string[] = [];
for await (const found of allStacks()) names.push(found.name);
const conflict = (await create(key, "Other")).error?.code;
const updated = await update(await get(stack.id), { schedule: { preset: "monthly" } });
console.log(JSON.stringify({ id: stack.id, names, conflict, preset: updated.schedule.preset }));
