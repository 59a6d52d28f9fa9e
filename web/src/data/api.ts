// Questions and orders to the Kant that served this page. The one place that knows the token.

const KEY = "kant-token";

/** Takes the token out of the address (`#token=…`), so that it is neither bookmarked nor shown, and keeps it for this tab. */
export function takeToken(): void {
  const found = /[#&]token=([^&]*)/.exec(location.hash);
  if (!found) return;
  keepToken(decodeURIComponent(found[1]!));
  history.replaceState(null, "", location.pathname + location.search);
}

/** Keeps a token for this tab; "" forgets it. */
export function keepToken(token: string): void {
  held = token;
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // it is held here
  }
}

let held = ""; // where the browser keeps nothing

function token(): string {
  try {
    return sessionStorage.getItem(KEY) ?? held;
  } catch {
    return held;
  }
}

function headers(more: Record<string, string> = {}): Record<string, string> {
  const own = token();
  return own ? { Authorization: `Bearer ${own}`, ...more } : more;
}

/** What the server refused, in its own sentence. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    sentence: string,
  ) {
    super(sentence);
  }
}

async function answer<T>(response: Response): Promise<T> {
  const text = await response.text();
  let body: unknown = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new Refused(response.status, "The server's answer was not JSON.");
  }
  if (response.ok) return body as T;
  const said = body as { error?: unknown; sentence?: unknown; message?: unknown } | null;
  const sentence = said?.error ?? said?.sentence ?? said?.message;
  throw new Refused(response.status, typeof sentence === "string" ? sentence : `${response.status} ${response.statusText}`);
}

/** `GET path`. Raises Refused with the server's sentence, TypeError where there is no connection. */
export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  return answer<T>(await fetch(path, { headers: headers({ Accept: "application/json" }), signal: signal ?? null }));
}

/** An order: `method path` with a body of JSON where there is one. */
export async function send<T>(method: "POST" | "PUT" | "DELETE", path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const has = body !== undefined;
  return answer<T>(
    await fetch(path, {
      method,
      headers: headers(has ? { "Content-Type": "application/json" } : {}),
      body: has ? JSON.stringify(body) : null,
      signal: signal ?? null,
    }),
  );
}

/** Text as the server has it, such as a log. */
export async function askText(path: string): Promise<string> {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) return answer<string>(response);
  return response.text();
}

export interface News {
  event: string;
  data: string;
}

/** Follows server-sent events until `signal` aborts or the server ends them. Fetched, since EventSource sends no token. */
export async function listen(path: string, heard: (news: News) => void, signal: AbortSignal): Promise<void> {
  const response = await fetch(path, { headers: headers({ Accept: "text/event-stream" }), signal });
  if (!response.ok || !response.body) {
    await answer(response);
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop()!;
    for (const part of parts) {
      const news = { event: "message", data: "" };
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) news.event = line.slice(7);
        else if (line.startsWith("data: ")) news.data += line.slice(6);
      }
      if (news.data) heard(news);
    }
  }
}
