// Filters on the columns of the collection. The index of the first chosen model provides their choices.
let filtered = null;
// Columns that jointspace writes. Few people filter by them, so their fields are hidden under "More".
const BUILT_IN = ["split", "width", "height"];

function keyOf(kind, sign, name) {
  return `${FILTER}${kind}.${sign}.${name}`;
}

function choiceOf(name, facet) {
  const select = element("select", { name: keyOf(facet.kind, "is", name) }, element("option", { value: "" }, "any"));
  for (const value of facet.values) select.append(element("option", { value: `${value}` }, `${value}`));
  return [select];
}

function spanOf(name, facet) {
  const type = facet.kind === "dates" ? "date" : "number";
  return ["least", "most"].map((sign) => {
    const input = element("input", { type, name: keyOf(facet.kind, sign, name), placeholder: `${facet[sign]}`, ariaLabel: `${name}, at ${sign}` });
    if (type === "number") input.step = "any";
    return element("label", {}, { least: "from", most: "to" }[sign], input);
  });
}

function fieldOf([name, facet]) {
  if (facet.part) return element("div", {}, element("label", {}, facet.part, element("input", { name: keyOf("text", "has", name) })));
  const inputs = facet.values?.length ? choiceOf(name, facet)
    : facet.values ? [element("input", { name: keyOf("text", "has", name), placeholder: "contains" })] : spanOf(name, facet);
  const label = inputs.length === 1 ? element("label", {}, name) : element("span", {}, name);
  if (inputs.length === 1) inputs[0].id = label.htmlFor = `filter-${name}`;
  return element("div", {}, label, element("div", { className: "span" }, ...inputs));
}

// Returns false for a column with the same value for every photo, because a filter on it would have no effect.
function varies({ values, least, most }) {
  return values ? values.length !== 1 : least !== most;
}

// Builds the fields when the filters are opened, and again if another model is the first one.
async function offerFilters(params) {
  const [model] = chosenModels(params);
  if (filtered === model.model) return;
  filtered = model.model;
  const { columns } = await fetchJson(`${base(model.model)}/columns`).catch(() => ({ columns: {} }));
  const offered = Object.entries(columns).filter(([name, facet]) => !name.includes("`") && varies(facet));
  const [builtIn, own] = [true, false].map((wanted) => offered.filter(([name]) => BUILT_IN.includes(name) === wanted));
  at("fields").replaceChildren(...[["path", { part: "File or folder name contains" }], ...own].map(fieldOf));
  at("built-in").replaceChildren(...builtIn.map(fieldOf));
  fillFields(state());
}

function fillFields(params) {
  for (const input of at("filter").querySelectorAll("[name]")) input.value = params.get(input.name) || "";
}

function filterNames(params) {
  return [...new Set(params.keys())].filter((name) => name.startsWith(FILTER) || name === "where");
}

function clearFilters() {
  go(Object.fromEntries(filterNames(state()).map((name) => [name, null])));
}

// Shows each active filter as a button that removes it.
function showFilters(params) {
  const names = filterNames(params).filter((name) => params.get(name));
  at("active").replaceChildren(...names.map((name) => {
    const [, sign, column] = name.match(/^f\.[a-z]+\.(is|has|least|most)\.(.*)$/s) || [];
    const kind = { is: `${column} =`, has: `${column === "path" ? "file name" : column} contains`, least: `${column} ≥`, most: `${column} ≤` }[sign];
    const text = kind ? `${kind} ${params.get(name)}` : params.get(name);
    return button(`${text} ✕`, () => go({ [name]: null }), { className: "chip", title: "Remove this filter" });
  }));
  fillFields(params);
  at("where").value = params.get("where") || "";
  if (at("filters").open) offerFilters(params);
}

function listenToFilters() {
  at("filters").addEventListener("toggle", () => at("filters").open && offerFilters(state()));
  at("clear").addEventListener("click", clearFilters);
  at("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    const changes = { where: at("where").value.trim() || null };
    for (const input of at("filter").querySelectorAll("[name]")) changes[input.name] = input.value || null;
    at("filters").open = false;
    go(changes);
  });
}
