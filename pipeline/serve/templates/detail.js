// The view of a single photo, with its captions and columns. It has its own URL.
let looking = new AbortController();

function beside(step) {
  const shown = [...new Set([...document.querySelectorAll("#answers [data-photograph]")].map((one) => one.dataset.photograph))];
  const here = shown.indexOf(state().get("image"));
  return here < 0 ? undefined : shown[here + step];
}

function move(step) {
  const next = beside(step);
  if (next) go({ image: next }, true);
}

function copy(link) {
  const said = (text) => { link.textContent = text; };
  if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(() => said("Copied"), () => said(location.href));
  else said(location.href);
}

function factsOf(known) {
  const split = known.split === "gallery" ? {} : { split: known.split }; // Unlabelled photos do not belong to a split.
  const facts = { ...split, ...(known.width ? { size: `${known.width} × ${known.height} pixels` } : {}), ...known.columns };
  return element("dl", {}, ...Object.entries(facts).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, shown(value))]));
}

function actsOf(known, model) {
  const acts = element("div", { className: "acts" });
  if (model.sentences) acts.append(button("Matching captions", () => question({ photograph: known.photograph })));
  acts.append(button("Similar photos", () => question({ photograph: known.photograph, like: "" })));
  const link = button("Copy link", () => copy(link));
  acts.append(link);
  if (/^https?:\/\//.test(known.name)) acts.append(element("a", { className: "button", href: known.name, target: "_blank", rel: "noopener noreferrer" }, "Open address"));
  if (!known.width) return acts; // Precomputed vectors have no image file.
  const href = known.original || known.large, download = known.original ? fileNameOf(known) : `${fileNameOf(known)}.jpg`;
  acts.append(element("a", { className: "button", href, target: "_blank", rel: "noopener" }, known.original ? "Open original" : "Open large"));
  acts.append(element("a", { className: "button", href, download }, "Download"));
  return acts;
}

async function look(address) {
  looking.abort();
  looking = new AbortController();
  const { signal } = looking, found = address?.match(ADDRESS);
  const model = found && about.models.find((one) => one.model === decodeURIComponent(found[1]));
  if (!model) {
    if (at("detail").open) at("detail").close();
    return;
  }
  try {
    const known = await fetchJson(`${address}/about`, { signal });
    const path = known.name.split("/"), caption = tidy(known.sentences[0] || known.name);
    at("name").textContent = path.pop();
    if (path.length) at("name").append(element("small", {}, ` in ${path.join("/")}`));
    const image = element("img", { src: known.large, alt: caption });
    image.addEventListener("error", () => image.replaceWith(missingPhoto()));
    at("large").replaceChildren(image);
    const sentences = known.sentences.map((text) => element("li", {}, button(tidy(text), () => question({ q: text }), { className: "text", title: "Find photos for this caption" })));
    at("facts").replaceChildren(
      element("ol", { className: "lines" }, ...sentences),
      ...(sentences.length ? [] : [element("p", { className: "quiet" }, "No captions")]),
      actsOf(known, model), factsOf(known),
    );
    at("previous").disabled = !beside(-1);
    at("next").disabled = !beside(1);
    at("alike").replaceChildren();
    if (!at("detail").open) at("detail").showModal();
    at("detail").scrollTop = 0;
    await alike(known, model, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (at("detail").open) at("detail").close();
    note(error.message);
  }
}

async function alike(known, model, signal) {
  const params = new URLSearchParams({ photograph: known.photograph, like: "" });
  const [address, options] = requestOf(params, null, model, 9);
  try {
    const { results } = await fetchJson(address, { ...options, signal });
    const others = results.filter((one) => one.photograph !== known.photograph).slice(0, 8).map(({ score, ...other }) => other);
    if (others.length) at("alike").replaceChildren(element("h3", {}, "Similar photos"), listOf(others));
  } catch {
    // Some models cannot compare photos. The view stays open without similar photos.
  }
}

function leaveDetail() {
  if (!state().has("image")) return;
  if (history.state?.inside) history.back();
  else go({ image: null }, true);
}

function listenToDetail() {
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  at("close").addEventListener("click", () => at("detail").close());
  at("detail").addEventListener("close", leaveDetail);
  at("detail").addEventListener("click", (event) => event.target === at("detail") && at("detail").close());
  at("detail").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
}
