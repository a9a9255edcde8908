// The server, as this page asks it. Every failure becomes a Trouble, which can be shown as it is.

import { events } from "./sse.js";

const KEY = "draftwood.key"; // kept by the browser for this tab alone
let apiKey = stored();

export class Trouble extends Error {
  constructor(message, { title = "The server refused", code = null, param = null, status = null } = {}) {
    const [said, hint] = message.split(/\n?hint:\s*/, 2);
    super(said.trim());
    this.title = title;
    this.hint = hint ? hint.trim() : "";
    this.code = code;
    this.param = param;
    this.status = status;
  }
}

export function useKey(key) {
  apiKey = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // storage is forbidden; the key lasts as long as the page
  }
}

export async function serverInfo() {
  const response = await reach("draftwood/info");
  return response.json();
}

/** Chunks of one answer, as the server sends them. Aborting the signal ends the request on the server too. */
export async function* chatChunks(request, signal) {
  const response = await reach("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let ended = false;
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw refused(chunk.error);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Trouble || error.name === "AbortError") throw error;
    throw new Trouble(`${error.message}`, { title: "The answer broke off" });
  }
  if (!ended) throw new Trouble("The connection closed before the end. hint: ask again; what has arrived is kept", { title: "The answer broke off" });
}

async function reach(path, options = {}) {
  const headers = { ...options.headers, ...(apiKey ? { Authorization: `Bearer ${apiKey}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("No answer from the server. hint: is it still running, and at this address?", { title: "Cannot reach the server" });
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  if (said?.error) throw refused(said.error, response.status);
  throw new Trouble(`It answered ${response.status} ${response.statusText}`.trim(), { title: "The server failed" });
}

function refused(error, status = null) {
  const title = status >= 500 || /server/.test(error.code ?? "") ? "The server failed" : "The server refused";
  return new Trouble(String(error.message ?? "no reason given"), { title, code: error.code, param: error.param, status });
}

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}
