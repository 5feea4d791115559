// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
// The output of a job, live. It keeps a bounded number of characters, however much the job writes.
"use strict";
(() => {
  const box = document.getElementById("log");
  const status = document.getElementById("log-status");
  const follow = document.getElementById("follow");
  const MOST_CHARACTERS = 400000, MOST_OF_A_BLOCK = 20000;
  let kept = 0, tail = "", pending = "", frame = 0;

  // Colours and cursor movements of terminals are left out; of a line that is rewritten, its last version is shown.
  const CONTROL = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;
  function plain(text) {
    return text.replace(CONTROL, "").split("\n").map((line) => {
      const whole = line.endsWith("\r") ? line.slice(0, -1) : line;
      return whole.slice(whole.lastIndexOf("\r") + 1);
    }).join("\n");
  }
  function write() {
    frame = 0;
    const text = pending.slice(-MOST_CHARACTERS);
    pending = "";
    const bottom = follow.checked;
    for (let at = 0; at < text.length; at += MOST_OF_A_BLOCK) {
      const block = document.createElement("div");
      block.className = "block";
      block.textContent = text.slice(at, at + MOST_OF_A_BLOCK);
      box.append(block);
      kept += block.textContent.length;
    }
    while (kept > MOST_CHARACTERS && box.childElementCount > 1) {
      kept -= box.firstElementChild.textContent.length;
      box.firstElementChild.remove();
    }
    if (bottom) box.scrollTop = box.scrollHeight;
  }
  function add(text) {
    const all = tail + text;
    const end = all.lastIndexOf("\n") + 1;
    tail = all.slice(end).slice(-20000);
    pending = (pending + plain(all.slice(0, end))).slice(-MOST_CHARACTERS);
    if (!frame) frame = setTimeout(() => requestAnimationFrame(write), 100);
  }
  let stream = null, ended = false;
  function connect() {
    if (ended || stream) return;
    stream = new EventSource(box.dataset.log);
    let first = true;
    stream.onmessage = (event) => {
      const piece = JSON.parse(event.data);
      if (first) { box.replaceChildren(); kept = 0; tail = pending = ""; first = false; }
      if (piece.skipped) add("\n… " + piece.skipped.toLocaleString("en") + " bytes were skipped …\n");
      add(piece.text);
      status.textContent = "live";
    };
    stream.addEventListener("end", () => {
      ended = true;
      stream.close();
      if (tail) { pending += plain(tail); tail = ""; write(); }
      status.textContent = box.childElementCount || pending ? "complete" : "no output";
    });
    stream.onerror = () => { first = true; status.textContent = "reconnecting"; if (stream.readyState === 2) { stream = null; setTimeout(connect, 1000); } };
  }
  box.addEventListener("wheel", (event) => { if (event.deltaY < 0) follow.checked = false; }, { passive: true });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && stream) { stream.close(); stream = null; } else if (!document.hidden) connect();
  });
  connect();
})();
