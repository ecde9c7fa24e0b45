import { chat, engineState, listModels } from "./api.js";

const POLL_MS = 2000;
const $ = (id) => document.getElementById(id);

const session = { key: "", base: "", open: false, models: [], running: null, tab: "curl" };

// ---- what is served

async function watchEngine() {
  try {
    showState(await engineState());
  } catch {
    tell("no", "The gateway does not answer");
  }
  setTimeout(watchEngine, document.hidden ? POLL_MS * 5 : POLL_MS);
}

function showState(state) {
  const up = state.engines.filter((engine) => engine.up);
  if (up.length) tell("yes", state.ready ? "Engine up" : "Engine up, gateway not ready");
  else tell("no", "Engine down");
  showBase(state, up[0]);
  showLive(up);
}

function tell(up, text) {
  if ($("state-text").textContent === text) return;
  $("state").dataset.up = up;
  $("state-text").textContent = text;
}

function showBase(state, engine) {
  $("base-facts").textContent = engine
    ? `${engine.architecture}, ${engine.quantization === "none" ? "not quantised" : `4-bit ${engine.quantization.toUpperCase()}`}, ${engine.dtype}, context of ${engine.context.toLocaleString()} tokens`
    : "Its facts appear when the engine is up.";
  if (session.base) return;
  session.base = state.base_model;
  session.open = state.open;
  $("base").textContent = state.base_model;
  showSnippet();
  if (state.open) {
    noteKey("Open mode: callers on this machine need no key. Paste one to be its tenant.");
    useKey("");
  }
}

function showLive(engines) {
  const sum = (name) => engines.reduce((total, engine) => total + (engine[name] ?? 0), 0);
  const facts = engines.length
    ? [["running", sum("running")], ["waiting", sum("waiting")],
       ["adapters on the device", sum("adapters_resident")],
       ["pages in use", `${Math.round((100 * sum("pages_used")) / Math.max(sum("pages"), 1))} %`]]
    : [];
  $("live").replaceChildren(...facts.map(([name, value]) => {
    const item = make("div");
    item.append(make("dt", "", name), make("dd", "", String(value)));
    return item;
  }));
}

// ---- the key and its models

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
});

$("key-show").addEventListener("click", () => {
  const shown = $("key").type === "password";
  $("key").type = shown ? "text" : "password";
  $("key-show").textContent = shown ? "Hide" : "Show";
  $("key-show").setAttribute("aria-pressed", String(shown));
});

async function useKey(key) {
  try {
    const models = await listModels(key);
    session.key = key;
    session.models = models;
    showModels();
    if (key) noteKey(adapterWords(models.length - 1));
  } catch (error) {
    session.models = [];
    showModels();
    noteKey(error.message, true);
  }
}

function adapterWords(count) {
  if (count === 0) return "This key's tenant has no adapters yet; the base is there to try.";
  return `This key's tenant has ${count} adapter${count > 1 ? "s" : ""}.`;
}

function noteKey(text, bad = false) {
  $("key-note").textContent = text;
  $("key-note").classList.toggle("bad", bad);
}

function showModels() {
  const chips = session.models.map((name, index) => {
    const chip = make("label", "chip");
    const box = make("input");
    Object.assign(box, { type: "checkbox", value: name, checked: index < 4 });
    box.addEventListener("change", modelsChanged);
    chip.append(box, make("span", "", name));
    return chip;
  });
  for (const old of $("models").querySelectorAll(".chip")) old.remove();
  $("models").append(...chips);
  $("models").disabled = !chips.length;
  $("models-none").hidden = chips.length > 0;
  modelsChanged();
}

function chosen() {
  return [...$("models").querySelectorAll("input:checked")].map((box) => box.value);
}

function modelsChanged() {
  $("run").disabled = chosen().length === 0;
  showSnippet();
}

// ---- side by side

$("prompt-form").addEventListener("submit", (event) => {
  event.preventDefault();
  runAll();
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!$("run").disabled) $("prompt-form").requestSubmit();
  }
});

$("stop").addEventListener("click", () => session.running?.abort());

async function runAll() {
  session.running?.abort();
  const running = (session.running = new AbortController());
  const request = {
    messages: [{ role: "user", content: $("prompt").value }],
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
  };
  const columns = chosen().map(makeColumn);
  $("answers").replaceChildren(...columns.map((column) => column.card));
  $("stop").hidden = false;
  await Promise.all(columns.map((column) => write(column, request, running.signal)));
  if (session.running !== running) return;
  $("stop").hidden = true;
  $("announce").textContent = "All answers are complete.";
}

function makeColumn(model) {
  const card = make("article", "answer");
  const text = make("div", "text writing");
  const counts = make("p", "quiet counts", "waiting for the first token");
  card.append(make("h3", "", model), text, counts);
  return { model, card, text, counts };
}

async function write(column, request, signal) {
  const began = performance.now();
  let first = 0;
  try {
    for await (const piece of chat(session.key, { ...request, model: column.model }, signal)) {
      first ||= performance.now();
      if (piece.text) column.text.append(piece.text);
      column.counts.textContent = countWords(piece.usage, began, first);
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    column.counts.textContent = stopped ? "stopped" : error.message;
    column.counts.classList.toggle("bad", !stopped);
  }
  column.text.classList.remove("writing");
}

function countWords(usage, began, first) {
  const wait = `first token after ${Math.round(first - began)} ms`;
  if (!usage) return wait;
  const seconds = (performance.now() - first) / 1000;
  const tokens = usage.completion_tokens;
  const rate = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return `${tokens} token${tokens === 1 ? "" : "s"}${rate}, ${wait}`;
}

// ---- how to call it

const snippets = {
  curl: (url, model) => `curl ${url}/chat/completions \\
  -H "Authorization: Bearer $LORATORIO_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`,
  python: (url, model) => `from openai import OpenAI

client = OpenAI(base_url="${url}", api_key="${session.open ? "EMPTY" : "sk-…"}")
answer = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)`,
  stream: (url, model) => `from openai import OpenAI

client = OpenAI(base_url="${url}", api_key="${session.open ? "EMPTY" : "sk-…"}")
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Hello"}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)`,
};

function showSnippet() {
  const model = chosen().at(-1) ?? session.base;
  $("code").textContent = snippets[session.tab](`${location.origin}/v1`, model);
}

const tabs = Object.keys(snippets).map((name) => $(`tab-${name}`));

for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => openTab(index));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    openTab((index + step + tabs.length) % tabs.length).focus();
  });
}

function openTab(index) {
  session.tab = Object.keys(snippets)[index];
  for (const [i, tab] of tabs.entries()) {
    tab.setAttribute("aria-selected", String(i === index));
    tab.tabIndex = i === index ? 0 : -1;
  }
  $("snippet").setAttribute("aria-labelledby", tabs[index].id);
  showSnippet();
  return tabs[index];
}

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("code").textContent);
    $("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren($("code"));
    $("copy").textContent = "Selected: press Ctrl C";
  }
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1800);
});

function make(tag, kind = "", text = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  return element;
}

watchEngine();
