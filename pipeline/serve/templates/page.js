// Connects the parts of the page: input changes the URL, and a changed URL is rendered.
function textOf(params) {
  return params.get("q") || (params.get("photograph") ? "a photo" : "");
}

async function showPhotograph(params) {
  const named = params.get("photograph");
  at("photograph").hidden = !named;
  if (!named) return;
  const file = await fileOf(params);
  if (at("preview").dataset.of !== named) {
    URL.revokeObjectURL(at("preview").src);
    at("preview").src = file ? URL.createObjectURL(file) : ADDRESS.test(named) ? named : "data:,";
    at("preview").dataset.of = named;
  }
  const changed = params.has("minus") || params.has("plus");
  const way = changed || params.get("like") ? "" : params.has("like") ? "similar" : "sentences";
  for (const one of at("ways").querySelectorAll("[data-way]")) one.setAttribute("aria-pressed", `${one.dataset.way === way}`);
  at("ways").firstElementChild.hidden = !chosenModels(params).some((model) => model.sentences);
  at("words").value = params.get("like") || "";
  at("weight").value = params.get("weight") || "0.5";
  for (const name of ["minus", "plus"]) at(name).value = params.get(name) || "";
  weigh();
}

async function render() {
  const params = state(), wanted = questionOf(params);
  const text = textOf(params);
  document.title = text ? `${text} · jointspace` : "jointspace";
  await showPhotograph(params);
  if (wanted !== asked) {
    asked = wanted;
    at("sentence").value = params.get("q") || "";
    at("regions").checked = params.has("regions");
    offerOrder(params);
    const chosen = chosenModels(params).map((one) => one.model);
    for (const box of at("models").querySelectorAll("input")) box.checked = chosen.includes(box.value);
    at("examples").hidden = Boolean(text) || !about.models[0].examples.length;
    at("draw").hidden = !params.get("q") || !chosenModels(params).some((one) => one.regions);
    at("generators").hidden = !about.generators.length || !params.get("photograph");
    showFilters(params);
    ask(params);
    if (!text) fetchJson("/api/models").then(showCounts).catch(() => {}); // The index may have changed since the page was opened.
  }
  look(params.get("image"));
}

// Names of the two orders of a column, by the kind of its values. The second order has a minus before the column.
const ORDERS = { dates: ["newest first", "oldest first"], numbers: ["smallest first", "largest first"], text: ["A to Z", "Z to A"], truth: ["false first", "true first"] };

// Offers to exclude words, to sort the likely matches by a column, and to search by meaning alone. The offers are shown
// at once if the query uses one of them.
function offerOrder(params) {
  const kinds = Object.assign({}, ...chosenModels(params).map((one) => one.columns));
  const names = Object.keys(kinds).filter((name) => kinds[name] in ORDERS);
  at("order").hidden = !params.get("q") || params.has("regions");
  at("sort").replaceChildren(element("option", { value: "" }, "best match"), ...names.flatMap((name) => [
    element("option", { value: name }, `${name}, ${ORDERS[kinds[name]][0]}`), element("option", { value: `-${name}` }, `${name}, ${ORDERS[kinds[name]][1]}`)]));
  at("sort").value = params.get("sort") || "";
  at("match").checked = !params.has("vectors");
  at("without").value = params.get("minus") || "";
  at("order").open = at("order").open || ["vectors", "minus", "sort"].some((name) => params.has(name));
}

function takeSentence(text) {
  if (text.trim()) question({ q: text.trim() });
  else if (textOf(state())) question({});
  else refuse("Type some words to search for.", "sentence");
}

async function takePhotograph(file) {
  if (file.size > about.max_upload_bytes) {
    refuse(`The file ${file.name} is larger than ${Math.round(about.max_upload_bytes / 1e6)} MB. Choose a smaller photo.`, "file");
    return;
  }
  const shown = /^image\/(jpeg|png|gif|webp|bmp)$/.test(file.type), other = file.type && !file.type.startsWith("image/");
  if (other || (shown && !(await createImageBitmap(file).catch(() => null)))) {
    refuse(`The file ${file.name} is not a photo, or is damaged. Choose a JPEG, PNG or WebP file.`, "file");
    return;
  }
  question({ photograph: await keep(file) });
}

function takeWords() {
  const [like, minus, plus] = ["words", "minus", "plus"].map((id) => at(id).value.trim());
  const photograph = state().get("photograph");
  if (like) question({ photograph, like, weight: at("weight").value });
  else if (minus || plus) question({ photograph, ...(minus ? { minus } : {}), ...(plus ? { plus } : {}) });
  else question({ photograph, like: "" });
}

// Shows the weight of the words if there are any. Words to remove or add can be typed only if there are none.
function weigh() {
  const some = Boolean(at("words").value.trim());
  at("balance").hidden = !some;
  at("minus").disabled = at("plus").disabled = some;
}

function offer(kind, names, act) {
  for (const [name, title, checked] of names) {
    const box = element("input", { type: "checkbox", value: name, checked });
    box.addEventListener("change", act);
    at(kind).append(element("label", { className: "chip", title }, box, name));
  }
}

function describeCollections(models) {
  // Counts the photos in the index of the first model of each collection, because this index answers first.
  const each = grouped(models.map((model) => ({ model }))).map(([{ model: one }]) => {
    const sentences = one.sentences ? ` and ${one.sentences.toLocaleString()} captions` : "";
    return `${one.collection}: ${one.images.toLocaleString()} photos${sentences}`;
  });
  return `${each.join("; ")}. Models: ${models.map((one) => one.model).join(", ")}. Photos that you upload are stored in this browser only. The server receives them for a search and does not store them.`;
}

function showCounts(overview) {
  at("about").textContent = describeCollections(overview.models);
}

function start(overview) {
  about = overview;
  const [first] = overview.models;
  offer("models", overview.models.map((one) => [one.model, `${one.registered}, ${one.images.toLocaleString()} photos of ${one.collection}`, false]), () => {
    const chosen = [...at("models").querySelectorAll("input:checked")].map((box) => box.value);
    go({ model: chosen.length ? chosen : null });
  });
  at("compare").hidden = overview.models.length < 2;
  at("compare").open = state().has("model");
  offer("generators", overview.generators.map((one) => [one.generator, one.registered, true]), render);
  showCounts(overview);
  at("sentence").maxLength = overview.max_sentence_chars;
  for (const text of first.examples.map((one) => tidy(one).replace(/\.$/, ""))) {
    at("examples").append(button(text, () => takeSentence(text), { className: "text" }));
  }
  at("program").textContent = [
    `curl '${location.origin}${base(first.model)}/images?top=3&sentence=${encodeURIComponent(first.examples[0] || "a dog")}'`,
    ...(first.sentences ? [`curl -F photograph=@photo.jpg '${location.origin}${base(first.model)}/sentences'`] : []),
    `curl -F photograph=@photo.jpg -F 'sentence=at night' '${location.origin}${base(first.model)}/similar'`,
    `curl -F photograph=@photo.jpg -F minus=red -F plus=blue '${location.origin}${base(first.model)}/arithmetic'`,
    ...overview.generators.slice(0, 1).map((one) => `curl -F photograph=@photo.jpg '${location.origin}${descriptions(one.generator)}'`),
  ].join("\n");
  render();
}

function listen() {
  history.scrollRestoration = "manual";
  addEventListener("popstate", render);
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    takeSentence(at("sentence").value);
  });
  at("photograph").addEventListener("submit", (event) => {
    event.preventDefault();
    takeWords();
  });
  for (const one of at("ways").querySelectorAll("[data-way]")) {
    one.addEventListener("click", () => question({ photograph: state().get("photograph"), ...(one.dataset.way === "similar" ? { like: "" } : {}) }));
  }
  at("drop").addEventListener("click", () => question({}));
  at("words").addEventListener("input", weigh);
  at("weight").addEventListener("change", takeWords);
  at("match").addEventListener("change", () => go({ vectors: at("match").checked ? null : "only" }));
  at("sort").addEventListener("change", () => go({ sort: at("sort").value || null }));
  at("without").addEventListener("change", () => go({ minus: at("without").value.trim() || null }));
  at("regions").addEventListener("change", () => go({ regions: at("regions").checked ? "yes" : null }));
  at("file").addEventListener("change", () => {
    if (at("file").files.length) takePhotograph(at("file").files[0]);
    at("file").value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      document.body.classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) takePhotograph(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select") || at("detail").open) return;
    event.preventDefault();
    at("sentence").select();
  });
}

listen();
listenToDetail();
listenToFilters();
fetchJson("/api/models").then(start).catch((error) => note(error.message));
