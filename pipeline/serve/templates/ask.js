// Sends the requests that the URL describes, and shows the results. Scrolling down loads more results.
let asking = new AbortController(), asked = null, columns = [];
const nearEnd = new IntersectionObserver((entries) => entries.forEach((one) => one.isIntersecting && one.target.click()), { rootMargin: "300px" });

function base(model) {
  return `/api/models/${encodeURIComponent(model)}`;
}

function descriptions(generator) {
  return `/api/generators/${encodeURIComponent(generator)}/descriptions`;
}

function words(params, name) {
  return (params.get(name) || "").split(/[\s,]+/).filter(Boolean);
}

// Returns the last part of the API route that answers the search in the URL with this model, such as "images".
function kindOf(params, model) {
  if (params.get("q")) return params.has("regions") && model.regions ? "regions" : "images";
  if (!params.get("photograph")) return "photographs";
  if (params.has("minus") || params.has("plus")) return "arithmetic";
  return params.has("like") || !model.sentences ? "similar" : "sentences";
}

function formOf(params, file, fields) {
  const body = new FormData(), bundled = params.get("photograph").match(ADDRESS);
  if (bundled) fields = { of: [decodeURIComponent(bundled[1])], image_id: [bundled[2]], ...fields };
  else body.append("photograph", file);
  for (const [name, values] of Object.entries(fields)) {
    for (const value of values) body.append(name, value);
  }
  return { method: "POST", body };
}

// Returns the sort order in the URL, or null if the index of the model has no such column to sort by.
function sortOf(params, model) {
  const sort = params.get("sort") || "", kind = model.columns[sort.replace(/^-/, "")];
  return kind && kind !== "nothing" ? sort : null;
}

function requestOf(params, file, model, top) {
  const kind = kindOf(params, model), where = conditionOf(params);
  const limits = { top, ...(where ? { where } : {}) };
  if (params.get("q")) limits[kind === "regions" ? "snippet" : "sentence"] = params.get("q");
  const asked = new URLSearchParams(limits);
  if (kind === "images") {
    for (const word of words(params, "minus")) asked.append("minus", word);
    if (sortOf(params, model)) asked.append("sort", sortOf(params, model));
    if (params.has("vectors")) asked.append("match_text", "false");
  }
  const address = `${base(model.model)}/${kind}?${asked}`;
  if (params.get("q") || kind === "photographs") return [address, {}];
  const like = kind === "similar" && params.get("like");
  const fields = kind === "arithmetic" ? { minus: words(params, "minus"), plus: words(params, "plus") }
    : like ? { sentence: [like], weight: [params.get("weight") || "0.5"] } : {};
  return [address, formOf(params, file, fields)];
}

function pageSize(params) {
  return Number(params.get("top")) || 2 * about.top;
}

function shownMost() {
  return Math.max(0, ...columns.map((column) => column.shown));
}

// Returns a text that explains how words changed the vector of the query photo, and how the results are sorted.
function explain(params) {
  const signed = (name) => words(params, name).map((word) => ` ${name} “${word}”`.replace("minus", "without")).join("");
  const order = about.among > 1
    ? ` The first ${about.among} results are sorted by their distance to their mean, so that an outlier comes last. Their scores may therefore increase.` : "";
  return `Your photo${signed("minus")}${signed("plus")}. These photos are nearest to the resulting vector.${order}`;
}

function emptyOf(params, kind) {
  const filtered = conditionOf(params) !== "";
  const what = kind === "sentences" ? "caption" : "photo";
  const text = filtered ? `No ${what} matches the filter.` : `No ${what} found.`;
  return element("p", { className: "nothing" }, text, " ", ...(filtered ? [button("Clear the filter", clearFilters, { className: "text" })] : []));
}

// The results of one model or generator. `fill` requests the first `top` results and adds those that are not yet shown.
class Answer {
  constructor(title, model, kind, request, most, heading) {
    Object.assign(this, { title, model, kind, request, most, shown: 0, list: null });
    this.state = element("small", {}, "…");
    const name = title && heading ? element(heading, {}, title) : element("span", {});
    this.node = element("section", { className: "column" }, element("header", {}, name, this.state));
  }

  async fill(params, top, signal) {
    const wanted = Math.min(top, this.most);
    try {
      const [address, options] = this.request(wanted);
      const answer = await fetchJson(address, { ...options, signal });
      if (signal.aborted) return;
      this.show(params, answer, wanted, signal);
    } catch (error) {
      if (signal.aborted) return;
      if (!this.shown) this.node.remove();
      else if (this.more) this.more.disabled = false;
      note(error.message, this.title);
    }
  }

  // Shows a line below the last likely match. The other results are folded below this line. If the index cannot tell
  // which matches are likely, the line is below all results and says why.
  end({ likely, remark, results }) {
    this.line ||= element("p", { className: "end" });
    this.line.textContent = asSentence(remark);
    this.list.after(this.line);
    const others = [...this.list.children].slice(likely ?? results.length);
    if (!others.length) return;
    this.rest ||= element("ol", { className: this.list.className });
    this.fold ||= element("details", { className: "rest" }, element("summary", {}), this.rest);
    this.rest.append(...others);
    this.fold.firstChild.textContent = `${results.length - likely} less likely results`;
    this.line.after(this.fold);
  }

  show(params, answer, wanted, signal) {
    const { results } = answer, fresh = results.slice(this.shown);
    if ("count" in answer) this.state.textContent = `${answer.count.toLocaleString()} photos`;
    else this.state.textContent = `${(1000 * answer.seconds).toFixed(answer.seconds < 0.01 ? 1 : 0)} ms`;
    if (!results.length) this.node.append(emptyOf(params, this.kind));
    else if (fresh.length) {
      const drawn = listOf(fresh);
      if (this.list) this.list.append(...drawn.childNodes);
      else {
        if (this.kind === "arithmetic") this.node.append(element("p", { className: "note" }, explain(params)));
        if (this.kind === "arithmetic" || this.kind === "similar") drawn.prepend(givenTile());
        this.node.append(this.list = drawn);
      }
    }
    this.shown = results.length;
    this.more?.remove();
    if (answer.warning) note(answer.warning, this.title);
    if (answer.remark && this.list) this.end(answer);
    // Without a line of likely matches, the nearest photos are sorted, and more photos would change their order.
    const sorted = this.kind === "images" && sortOf(params, this.model) && answer.likely === null;
    if (sorted) note(`There is no line of likely matches here, so the ${results.length} nearest photos are sorted.`, this.title);
    if (results.length === wanted && wanted < this.most && !sorted) {
      this.more = button("More", () => {
        this.more.disabled = true;
        nearEnd.unobserve(this.more);
        this.fill(params, 2 * this.shown, signal);
      }, { className: "more" });
      (this.fold || this.node).append(this.more);
      nearEnd.observe(this.more);
    }
    if (answer.unknown?.length) {
      const ignored = answer.unknown.map((word) => (answer.near[word] ? `${word} (${answer.near[word]}?)` : word));
      note(`The model does not know these words, so they were ignored: ${ignored.join(", ")}.`, this.title);
    }
  }
}

async function fileOf(params) {
  const named = params.get("photograph");
  return !named || ADDRESS.test(named) ? null : kept(named);
}

// Returns everything that the results depend on, as one text: the parameters of the URL except the photo that is viewed,
// followed by the chosen generators.
function questionOf(params) {
  const rest = new URLSearchParams(params);
  rest.delete("image");
  return `${rest}|${at("generators").hidden ? "" : generatorsChosen()}`;
}

function generatorsChosen() {
  return [...at("generators").querySelectorAll("input:checked")].map((box) => box.value);
}

async function ask(params) {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking, shown = history.state?.shown || 0, scroll = history.state?.scroll || 0;
  forget();
  nearEnd.disconnect();
  const file = await fileOf(params);
  if (signal.aborted) return;
  if (params.get("photograph") && !file && !ADDRESS.test(params.get("photograph"))) {
    columns = [];
    busy(false);
    at("answers").replaceChildren();
    note("This link points to a photo that is no longer stored in this browser. Choose the photo again.");
    return;
  }
  const models = chosenModels(params), several = grouped(about.models.map((model) => ({ model }))).length > 1;
  const heading = several ? "h3" : "h2", browsing = !params.get("q") && !params.get("photograph");
  const wanted = browsing ? grouped(models.map((model) => ({ model }))).map(([one]) => one.model) : models;
  const first = params.get("photograph") && kindOf(params, models[0]) === "sentences" ? generatorsChosen() : [];
  const told = first.map((name) => {
    const generator = about.generators.find((one) => one.generator === name);
    return new Answer(`Captions generated by ${name}`, null, "descriptions", (top) => [`${descriptions(name)}?top=${top}`, formOf(params, file, {})], generator.top, heading);
  });
  const ways = wanted.map((model) => {
    const title = browsing ? (several ? "" : model.collection) : model.model;
    const others = told.length || models.some((one) => one !== model && one.collection_id === model.collection_id);
    return new Answer(title, model, kindOf(params, model), (top) => requestOf(params, file, model, top), about.max_top, browsing || others ? heading : null);
  });
  columns = [...told, ...ways];
  titles = columns.map((one) => one.title);
  const sections = grouped(ways).map((own, place) => {
    const inside = [...(place ? [] : told), ...own].map((one) => one.node);
    const heading = several ? [element("h2", {}, own[0].model.collection)] : [];
    return element("section", { className: `collection ${inside.length > 1 ? "side" : "alone"}` }, ...heading, element("div", { className: "columns" }, ...inside));
  });
  // The previous results stay, dimmed, until the first new results arrive.
  busy(true);
  const filling = columns.map((one) => one.fill(params, Math.max(pageSize(params), shown), signal));
  await Promise.race(filling);
  if (signal.aborted) return;
  at("answers").replaceChildren(...sections);
  at("answers").ariaBusy = "false";
  if (!scroll) scrollTo({ top: 0 });
  await Promise.all(filling);
  if (signal.aborted) return;
  busy(false);
  if (scroll) scrollTo({ top: scroll });
}

function busy(now) {
  at("busy").hidden = !now;
  at("answers").ariaBusy = `${now}`;
}

function grouped(ways) {
  const found = new Map();
  for (const one of ways) found.set(one.model.collection_id, [...(found.get(one.model.collection_id) || []), one]);
  return [...found.values()];
}
