// Server-sent events out of a stream of bytes, as the API sends them: `data:` fields, each event ended by an empty line.

export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
      if (done) break;
    }
    if (data.length) yield data.join("\n"); // the last event may lack its empty line
  } finally {
    reader.cancel().catch(() => {}); // leaving early, for whatever reason, ends the request
  }
}
