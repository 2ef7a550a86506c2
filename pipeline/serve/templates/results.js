// Builds the elements that show search results.
const SVG = "http://www.w3.org/2000/svg";
// Columns that are shown in the view of a single photo only.
const DETAIL = ["folder", "camera", "tags", "description"];

function boxOf(result) {
  const [left, top, right, bottom] = result.box;
  const [svg, edge, rect] = ["svg", "rect", "rect"].map((tag) => document.createElementNS(SVG, tag));
  // The box is scaled and cropped like the photo under it (object-fit: cover).
  const shape = { class: "box", viewBox: `0 0 ${result.width} ${result.height}`, preserveAspectRatio: "xMidYMid slice" };
  const place = { x: left, y: top, width: right - left, height: bottom - top };
  for (const [node, values] of [[svg, shape], [edge, place], [rect, place]]) {
    for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  }
  svg.append(edge, rect);
  return svg;
}

function scoreOf(result) {
  return element("span", { className: "score", title: "Score. A higher score is a better match." }, result.score.toFixed(3));
}

function fileNameOf(result) {
  return result.name.split(/\/|::/).pop();
}

// Returns the element that is shown in place of a photo that the server cannot read, and shows a message for the user.
function missingPhoto() {
  note("Some photos cannot be read. If their folder was moved, stop the server and start it again with jointspace serve INDEX --data-root FOLDER.");
  return element("span", { className: "missing" }, "Cannot be read");
}

function photographOf(result) {
  const image = element("img", { src: result.photograph, alt: tidy(result.caption || result.name), title: result.name, loading: "lazy" });
  const tile = button(image, () => go({ image: result.photograph }), { className: "tile" });
  image.addEventListener("error", () => image.replaceWith(missingPhoto()));
  if (result.box) tile.append(boxOf(result));
  const caption = element("figcaption", {});
  if ("score" in result) caption.append(`${result.rank}`, scoreOf(result));
  caption.append(element("span", { className: "name", title: result.name }, fileNameOf(result)));
  if (result.caption) caption.append(element("span", { className: "own", title: tidy(result.caption) }, tidy(result.caption)));
  if (result.matches?.length) caption.append(element("span", { className: "own" }, `Words in ${result.matches.join(", ")}`));
  const own = Object.entries(result.columns).filter(([name]) => !DETAIL.includes(name)).map(([name, value]) => `${name} ${shown(value)}`);
  if (own.length) caption.append(element("span", { className: "own", title: own.join("\n") }, own.join(" · ")));
  const item = element("li", {}, element("figure", {}, tile, caption));
  item.dataset.photograph = result.photograph;
  return item;
}

// Returns the list item that shows the photo of the query before its results.
function givenTile() {
  const image = element("img", { src: at("preview").src, alt: "The photo you are searching with" });
  const caption = element("figcaption", {}, element("span", { className: "own" }, "Your photo"));
  return element("li", { className: "given" }, element("figure", {}, element("span", { className: "tile" }, image), caption));
}

function sentenceOf(result, ...more) {
  const text = button(tidy(result.text), () => question({ q: result.text }), { className: "text", title: "Find photos for this caption" });
  return element("li", {}, text, scoreOf(result), ...more);
}

function descriptionOf(result) {
  const { text, cosine } = result.nearest;
  const near = result.verbatim
    ? element("span", { className: "copied" }, "Copied from a training caption")
    : `Nearest training caption (similarity ${cosine.toFixed(2)}): ${tidy(text)}`;
  return sentenceOf(result, element("span", { className: "near" }, near));
}

function listOf(results) {
  const [name, draw] = "verbatim" in results[0] ? ["lines told", descriptionOf]
    : "text" in results[0] ? ["lines", sentenceOf] : ["strip", photographOf];
  return element("ol", { className: name }, ...results.map((result) => draw(result)));
}
