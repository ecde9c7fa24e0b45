// The calls this page makes. Keys are arguments: nothing here keeps them.

export class ApiError extends Error {}

export async function engineState() {
  const response = await fetch("/page/state");
  if (!response.ok) throw new ApiError(`The gateway answers ${response.status}`);
  return response.json();
}

export async function listModels(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  await refuse(response);
  return (await response.json()).data.map((model) => model.id);
}

// Yields the pieces of one answer: {text}, and at the end {usage}.
export async function* chat(key, request, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  await refuse(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    const text = chunk.choices[0]?.delta.content;
    if (text) yield { text };
    if (chunk.usage) yield { usage: chunk.usage };
  }
}

// The data of server-sent events; frames and characters may be cut anywhere.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function refuse(response) {
  if (response.ok) return;
  const body = await response.json().catch(() => null);
  throw new ApiError(body?.error?.message ?? `The gateway answers ${response.status}`);
}
