"use strict";
// The search of the page is stored in its URL, so that every search can be linked to, and Back returns to the previous
// search. The chosen generators are stored in their checkboxes only, and the scroll position in the browser history.
const at = (id) => document.getElementById(id);
const FILTER = "f.";
const QUESTION = ["q", "photograph", "like", "weight", "minus", "plus"];
const ADDRESS = /^\/api\/models\/([^/]+)\/photographs\/(\d+)$/;
let about = null;

function element(tag, attributes, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

function button(text, act, attributes) {
  const node = element("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", act);
  return node;
}

// Removes the spaces that tokenizers leave before the punctuation of a caption.
function tidy(caption) {
  return caption.replace(/(?<=\S) +([.,;:!?]|'s|n't)(?=\s|$)/g, "$1");
}

// Formats the value of a column. A time loses its T, and its seconds if they are zero.
function shown(value) {
  return `${value}`.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:00)?/, "$1 $2");
}

function state() {
  return new URLSearchParams(location.search);
}

// Changes parameters of the URL and renders the page. `changes` maps a name to a value, to several values, or to null,
// which removes the parameter. `replace` replaces the entry of the browser history instead of adding an entry.
function go(changes, replace) {
  const next = state();
  for (const [name, values] of Object.entries(changes)) {
    next.delete(name);
    for (const value of values === null ? [] : [values].flat()) next.append(name, value);
  }
  const address = next.size ? `/?${next}` : "/", here = location.pathname + location.search;
  if (address === here) return;
  history.replaceState({ ...history.state, scroll: scrollY, shown: shownMost() }, "");
  // `inside` tells that the previous history entry is this page, so that closing a photo may go back to it.
  history[replace ? "replaceState" : "pushState"](replace ? history.state : { inside: true }, "", address);
  render();
}

// Starts a new search with the parameters `parts`. The parameters of the previous query (QUESTION) and the photo that is
// viewed are removed from the URL. All others are kept, such as the filters, the chosen models and the sort order.
function question(parts) {
  const none = Object.fromEntries(QUESTION.map((name) => [name, null]));
  go({ ...none, image: null, ...parts });
}

function chosenModels(params) {
  const named = params.getAll("model").filter((name) => about.models.some((one) => one.model === name));
  if (named.length) return about.models.filter((one) => named.includes(one.model));
  const first = new Map();
  for (const one of about.models) if (!first.has(one.collection_id)) first.set(one.collection_id, one);
  return [...first.values()];
}

function quoted(value) {
  return `'${value.replaceAll("'", "''")}'`;
}

// Joins all filters and the typed condition into one condition for the API.
function conditionOf(params) {
  const parts = params.get("where") ? [`(${params.get("where")})`] : [];
  for (const [name, value] of params) {
    if (!name.startsWith(FILTER)) continue;
    const [, kind, sign, column] = name.match(/^f\.(text|truth|numbers|dates)\.(is|has|least|most)\.(.*)$/s) || [];
    if (!column) continue;
    const last = kind === "dates" && sign === "most" ? `${value}T23:59:59.999999` : value; // Includes the whole last day.
    const literal = kind === "text" || kind === "dates" ? quoted(last) : value;
    if (sign === "has" && column === "path") parts.push(`(${literal} in path or ${literal} in member)`); // The file name of a photo in a tar shard is its member.
    else if (sign === "has") parts.push(`${literal} in column(${quoted(column)})`);
    else parts.push(`column(${quoted(column)}) ${{ is: "=", least: ">=", most: "<=" }[sign]} ${literal}`);
  }
  return parts.join(" and ");
}

const UNREACHABLE = "The server does not answer. Check that jointspace serve is still running, then try again.";

async function fetchJson(address, options) {
  const answer = await fetch(address, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(UNREACHABLE);
  });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error || `The server answered with status ${answer.status}.`);
  return value;
}

let notes = new Map(), titles = [];

// Returns `text` as a sentence, with a capital letter and a full stop.
function asSentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

// Shows a message. If several models have the same message, it is shown once, after the titles of these models unless
// it concerns all models. Without a `title`, the message concerns no single model.
function note(text, title) {
  notes.set(text, [...(notes.get(text) || []), ...(title ? [title] : [])]);
  at("notes").replaceChildren(...[...notes].map(([told, of]) => {
    const whose = of.length && of.length < titles.length ? `${of.join(", ")}: ` : "";
    const again = told === UNREACHABLE ? [button("Try again", () => location.reload())] : [];
    return element("p", { className: "warning" }, `${whose}${asSentence(told)}`, ...again);
  }));
}

function forget() {
  notes = new Map();
  at("notes").replaceChildren();
}

// Shows why a search is not possible, and puts the cursor into the field with the id `field`. The previous results stay.
function refuse(text, field) {
  forget();
  note(text);
  at(field).focus();
}
