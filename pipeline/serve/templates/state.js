"use strict";
// What is asked stands in the address alone: every question can be linked to, and Back leads to the one before.
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

// A caption whose punctuation stands apart, as tokenisers leave it, as people write it.
function tidy(caption) {
  return caption.replace(/(?<=\S) +([.,;:!?]|'s|n't)(?=\s|$)/g, "$1");
}

// The value of a column, a time without its T and its seconds of zero.
function shown(value) {
  return `${value}`.replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:00)?/, "$1 $2");
}

function state() {
  return new URLSearchParams(location.search);
}

// Goes to the present address with some parameters changed: name -> a value, several, or null for none.
function go(changes, replace) {
  const next = state();
  for (const [name, values] of Object.entries(changes)) {
    next.delete(name);
    for (const value of values === null ? [] : [values].flat()) next.append(name, value);
  }
  const address = next.size ? `/?${next}` : "/", here = location.pathname + location.search;
  if (address === here) return;
  history.replaceState({ ...history.state, scroll: scrollY, shown: shownMost() }, "");
  // `inside`: the entry before is this page too, so that closing a photograph may go back to it.
  history[replace ? "replaceState" : "pushState"](replace ? history.state : { inside: true }, "", address);
  render();
}

// Asks something else: what was asked before is dropped, filters and models stay.
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

// The condition of all filters and of the one that was written, as the API takes it.
function conditionOf(params) {
  const parts = params.get("where") ? [`(${params.get("where")})`] : [];
  for (const [name, value] of params) {
    if (!name.startsWith(FILTER)) continue;
    const [, kind, sign, column] = name.match(/^f\.(text|truth|numbers|dates)\.(is|has|least|most)\.(.*)$/s) || [];
    if (!column) continue;
    const last = kind === "dates" && sign === "most" ? `${value}T23:59:59.999999` : value; // the whole of that day
    const literal = kind === "text" || kind === "dates" ? quoted(last) : value;
    if (sign === "has" && column === "path") parts.push(`(${literal} in path or ${literal} in member)`); // inside a shard the file is its member
    else if (sign === "has") parts.push(`${literal} in column(${quoted(column)})`);
    else parts.push(`column(${quoted(column)}) ${{ is: "=", least: ">=", most: "<=" }[sign]} ${literal}`);
  }
  return parts.join(" and ");
}

const UNREACHABLE = "the server does not answer. Check that jointspace serve is still running, then try again";

async function fetchJson(address, options) {
  const answer = await fetch(address, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error(UNREACHABLE);
  });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error || `the server answered ${answer.status}`);
  return value;
}

let notes = new Map(), titles = [];

// Says it once, however many models it is of, and names these unless it is of all.
function note(text, title) {
  notes.set(text, [...(notes.get(text) || []), ...(title ? [title] : [])]);
  at("notes").replaceChildren(...[...notes].map(([told, of]) => {
    const whose = of.length && of.length < titles.length ? `${of.join(", ")}: ` : "";
    const again = told === UNREACHABLE ? [button("Try again", () => location.reload())] : [];
    return element("p", { className: "warning" }, `${whose}${told[0].toUpperCase()}${told.slice(1)}.`, ...again);
  }));
}

function forget() {
  notes = new Map();
  at("notes").replaceChildren();
}

// Says why a question is none; what was answered before stays.
function refuse(text, field) {
  forget();
  note(text);
  at(field).focus();
}
