// Uploads an adapter in parts, as /v1/adapters takes them: what was cut off goes on where it was.
"use strict";

const CONFIG = "adapter_config.json", WEIGHTS = "adapter_model.safetensors";
const PART = 8 << 20, TRIES = 4, LOOK_MS = 800;

for (const box of document.querySelectorAll("[data-upload]")) {
  const { upload: base, query, token, shown } = box.dataset;
  const form = box.querySelector("form"), input = form.querySelector("input[type=file]");
  const drop = box.querySelector(".drop"), bar = box.querySelector("progress");
  const told = box.querySelector("[data-told]"), chosen = box.querySelector("[data-chosen]");
  const problems = box.querySelector("[data-problems]"), stop = box.querySelector("[data-stop]");
  let files = new Map(), begun = null, running = null;
  box.querySelector("[data-script]").hidden = false;

  const say = (text) => { told.textContent = text; };
  const size = (bytes) => bytes < 1 << 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;

  function choose(list) {
    files = new Map([...list].filter((file) => [CONFIG, WEIGHTS].includes(file.name)).map((file) => [file.name, file]));
    begun = null;
    chosen.textContent = [...files.values()].map((file) => `${file.name} (${size(file.size)})`).join(", ");
    const missing = [CONFIG, WEIGHTS].filter((name) => !files.has(name));
    say(missing.length ? `Still missing: ${missing.join(" and ")}.` : "Ready to upload.");
  }

  async function flattened(items) {
    const found = [], entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    for (const entry of entries) {
      if (entry.isFile) found.push(await new Promise((done, fail) => entry.file(done, fail)));
      else {
        const reader = entry.createReader();
        for (;;) {  // a folder is read in pieces
          const some = await new Promise((done, fail) => reader.readEntries(done, fail));
          if (!some.length) break;
          for (const each of some) if (each.isFile) found.push(await new Promise((done, fail) => each.file(done, fail)));
        }
      }
    }
    return found;
  }

  class Refused extends Error {
    constructor(error) { super(error.message); this.problems = error.problems ?? []; }
  }

  async function call(method, path, body, signal) {
    const headers = { "x-form-token": token };
    const answer = await fetch(`${base}${path}?${query}`, { method, headers, body, signal });
    const found = answer.status === 204 ? {} : await answer.json();
    if (!answer.ok && answer.status < 500) throw new Refused(found.error);
    if (!answer.ok) throw new Error(found.error?.message ?? "The gateway does not answer.");
    return found;
  }

  // One part, with its progress; fetch tells of none.
  function put(path, piece, signal, progress) {
    return new Promise((done, fail) => {
      const request = new XMLHttpRequest();
      request.open("PUT", `${base}${path}?${query}`);
      request.setRequestHeader("x-form-token", token);
      request.responseType = "json";
      request.upload.onprogress = (event) => progress(event.loaded);
      request.onload = () => {
        if (request.status < 300) done();
        else if (request.status < 500) fail(new Refused(request.response?.error ?? { message: "It was refused." }));
        else fail(new Error("The gateway does not answer."));
      };
      request.onerror = () => fail(new Error("The connection was lost."));
      request.onabort = () => fail(new DOMException("", "AbortError"));
      signal.addEventListener("abort", () => request.abort(), { once: true });
      request.send(piece);
    });
  }

  async function send(signal) {
    const whole = [...files.values()].reduce((sum, file) => sum + file.size, 0);
    if (begun === null) {
      const named = { name: form.elements.name.value.trim(), alias: form.elements.alias.value.trim() || null };
      begun = (await call("POST", "", JSON.stringify(named), signal)).id;
    }
    const there = (await call("GET", `/${begun}`, undefined, signal)).files;
    let sent = 0;
    for (const [name, file] of files) {
      const known = new Map((there[name] ?? []).map((each) => [each.part, each.bytes]));
      for (let part = 1, at = 0; at < file.size || part === 1; part += 1, at += PART) {
        const piece = file.slice(at, at + PART);
        if (known.get(part) !== piece.size) {
          await again(() => put(`/${begun}/${name}/${part}`, piece, signal, (loaded) => { bar.value = (sent + loaded) / whole; }), signal);
        }
        sent += piece.size;
        bar.value = sent / whole;
        say(`${size(sent)} of ${size(whole)} sent.`);
      }
    }
  }

  async function again(work, signal) {
    for (let tries = 1; ; tries += 1) {
      try { return await work(); } catch (error) {
        if (error instanceof Refused || signal.aborted || tries === TRIES) throw error;
        await new Promise((done) => setTimeout(done, 300 * 2 ** tries));
      }
    }
  }

  async function publish(signal) {
    bar.removeAttribute("value");
    say("Validating it and trying it on an engine…");
    const look = setInterval(async () => {
      try {
        const { stage } = await call("GET", `/${begun}`, undefined, signal);
        if (stage) say(`${stage[0].toUpperCase()}${stage.slice(1)}…`);
      } catch { /* the answer itself says what is wrong */ }
    }, LOOK_MS);
    try { return await call("POST", `/${begun}/complete`, "{}", signal); } finally { clearInterval(look); }
  }

  async function run() {
    running = new AbortController();
    for (const each of form.querySelectorAll("input, button:not([data-stop])")) each.disabled = true;
    problems.replaceChildren();
    bar.hidden = stop.hidden = false;
    try {
      await send(running.signal);
      const version = await publish(running.signal);
      say(`${version.model} is ready.`);
      location.assign(`${shown}&version=${encodeURIComponent(version.id)}`);
    } catch (error) {
      const refused = error instanceof Refused;
      if (running.signal.aborted) say("Given up.");
      else say(refused ? error.message : `${error.message} Upload again: it goes on where it was.`);
      problems.append(...(error.problems ?? []).map((text) => Object.assign(document.createElement("li"), { textContent: text })));
      if (begun !== null && (refused || running.signal.aborted)) {
        await call("DELETE", `/${begun}`).catch(() => {});
        begun = null;
      }
      bar.value = 0;
    } finally {
      for (const each of form.querySelectorAll("input, button")) each.disabled = false;
      bar.hidden = stop.hidden = true;
      running = null;
    }
  }

  input.addEventListener("change", () => choose(input.files));
  stop.addEventListener("click", () => running?.abort());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (files.size === 2) run();
    else { say(`Choose ${CONFIG} and ${WEIGHTS}.`); input.focus(); }
  });
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    const plain = [...event.dataTransfer.files];
    const found = await flattened(event.dataTransfer.items);
    choose(found.length ? found : plain);
  });
  window.addEventListener("beforeunload", (event) => { if (running) event.preventDefault(); });
}
