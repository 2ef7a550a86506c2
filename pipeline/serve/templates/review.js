// The decisions are stored on the server only. The page begins with the first pair without a decision. The pairs that
// are probably wrong come first, and their progress is shown separately.
const TOKEN = document.querySelector("meta[name=token]").content;
const KEYS = { w: "wrong", r: "right", u: "unsure" };
let review = null, here = 0, busy = false;

function firstOpen(from) {
  const order = review.decisions.map((_, number) => (from + number) % review.decisions.length);
  const open = order.filter((number) => !review.decisions[number]);
  return open.find((number) => number < review.probable) ?? open[0];
}

function show(number) {
  const all = review.pairs.length, probable = number < review.probable;
  const [first, end] = probable ? [0, review.probable] : [review.probable, all], count = end - first;
  const decisions = review.decisions.slice(first, end).filter(Boolean), decided = decisions.length;
  const counts = Object.values(KEYS).map((step) => `${decisions.filter((one) => one === step).length} ${step}`);
  here = number;
  at("pair").hidden = !all;
  at("bar").max = count || 1;
  at("bar").value = decided;
  at("progress").textContent = all ? `${here - first + 1} of ${count} ${probable ? "probable" : "others"}${decided ? ` · decided: ${counts.join(", ")}` : ""}` : "The audit has listed no captions.";
  if (!all) return;
  const pair = review.pairs[here], decision = review.decisions[here], several = pair.captions.length > 1;
  const address = `/api/review/photographs/${here}`;
  if (at("photo").getAttribute("src") !== address) {
    at("photo").hidden = false;
    at("missing").hidden = true;
    at("photo").src = address;
  }
  at("photo").alt = at("image").textContent = pair.image;
  at("question").textContent = `Does ${several ? "any of these captions" : "this caption"} describe the photo?`;
  at("captions").replaceChildren(...pair.captions.map((text) => element("li", {}, tidy(text))));
  at("context").hidden = !pair.others.length;
  at("others").replaceChildren(...pair.others.map((text) => element("li", {}, tidy(text))));
  at("effect").textContent = `Wrong: the next run leaves out ${pair.whole ? "the photo" : "this caption"}.`;
  for (const one of document.querySelectorAll("[data-step]")) one.setAttribute("aria-pressed", one.dataset.step === decision);
  forget();
  const finish = `stop the server and run \`${review.command}\``;
  if (review.decisions.every(Boolean)) note(`All pairs are decided, in ${review.file}. To finish, ${finish}`);
  else if (!probable && !decided && review.decisions.slice(0, first).every(Boolean)) {
    const reached = review.probable ? "All probable pairs are decided" : "The audit has no probable pairs";
    note(`${reached}. The remaining pairs (${count}) are the least fitting of the others. Go on with them, or ${finish}`);
  }
}

// Sends one step at a time, so that a key always concerns the pair that is shown.
async function take(step) {
  if (busy || (step !== "undo" && !review.pairs.length)) return;
  busy = true;
  try {
    const body = JSON.stringify(step === "undo" ? { step } : { step, pair: here });
    const headers = { "Content-Type": "application/json", "X-Review-Token": TOKEN };
    const answer = await fetchJson("/api/review/decisions", { method: "POST", headers, body });
    review.decisions = answer.decisions;
    show(step === "undo" ? answer.pair ?? here : firstOpen(here) ?? here);
    if (step === "undo" && answer.pair === null) note("The last decision is undone. It was about a pair that the audit no longer lists.");
  } catch (error) {
    forget();
    note(error.message);
  }
  busy = false;
}

function move(by) {
  if (!busy) show(Math.max(0, Math.min(review.pairs.length - 1, here + by)));
}

at("photo").addEventListener("error", () => {
  at("photo").hidden = true;
  at("missing").hidden = false;
});
for (const one of document.querySelectorAll("[data-step]")) one.addEventListener("click", () => take(one.dataset.step));
at("undo").addEventListener("click", () => take("undo"));
at("back").addEventListener("click", () => move(-1));
at("forth").addEventListener("click", () => move(1));
addEventListener("keydown", (event) => {
  const key = event.key.toLowerCase(), held = event.ctrlKey || event.metaKey;
  if (!review || event.repeat || event.altKey || (held && key !== "z")) return;
  if (KEYS[key]) take(KEYS[key]);
  else if (key === "z") take("undo");
  else if (key === "arrowleft") move(-1);
  else if (key === "arrowright") move(1);
  else return;
  event.preventDefault();
});
fetchJson("/api/review").then((answer) => {
  review = answer;
  show(firstOpen(0) ?? 0);
}, (error) => note(error.message));
