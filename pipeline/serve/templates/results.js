// How answers are drawn.
const SVG = "http://www.w3.org/2000/svg";

function boxOf(result) {
  const [left, top, right, bottom] = result.box;
  const [svg, edge, rect] = ["svg", "rect", "rect"].map((tag) => document.createElementNS(SVG, tag));
  // Fills and crops as the photograph under it does.
  const shape = { class: "box", viewBox: `0 0 ${result.width} ${result.height}`, preserveAspectRatio: "xMidYMid slice" };
  const place = { x: left, y: top, width: right - left, height: bottom - top };
  for (const [node, values] of [[svg, shape], [edge, place], [rect, place]]) {
    for (const [name, value] of Object.entries(values)) node.setAttribute(name, value);
  }
  svg.append(edge, rect);
  return svg;
}

// A score as a bar from what any pair has to what a right one has; the number itself is its title. Where neither is
// known it is drawn beside the best score, and where that says nothing the number stands there.
function scoreOf(score, scale) {
  const [low, high, means] = scale;
  if (!(high > low)) return element("span", { className: "score plain" }, score.toFixed(3));
  const share = Math.round(100 * Math.min(1, Math.max(0, (score - low) / (high - low))));
  const title = `score ${score.toFixed(3)}; ${means}`;
  const inner = element("span", {}), bar = element("span", { className: "score", title }, inner);
  inner.style.width = `${share}%`;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", title);
  return bar;
}

// From what and to what a bar goes, and what that is.
function scaleOf(model, kind, results) {
  const scale = model?.scale, best = Math.max(...results.map((one) => one.score ?? 0));
  if (scale && (kind === "images" || kind === "sentences")) {
    return [scale.typical, scale.right, `a full bar is as near as captions are to their own photos (${scale.right.toFixed(3)}), an empty one as any two (${scale.typical.toFixed(3)})`];
  }
  if (scale && kind === "similar") {
    return [scale.typical_image, scale.same_image, "a full bar is the same photo, an empty one any other"];
  }
  return [0, best, "a full bar is the best score of this answer"];
}

function photographOf(result, scale) {
  const image = element("img", { src: result.photograph, alt: result.caption || result.name, title: result.name, loading: "lazy" });
  const tile = button(image, () => go({ image: result.photograph }), { className: "tile" });
  image.addEventListener("error", () => image.replaceWith(element("span", { className: "missing" }, "not readable")));
  if (result.box) tile.append(boxOf(result));
  const figure = element("figure", {}, tile);
  const caption = element("figcaption", {});
  if ("score" in result) caption.append(`${result.rank}`, scoreOf(result.score, scale));
  const own = Object.entries(result.columns).map(([name, value]) => `${name} ${value}`);
  if (own.length) caption.append(element("span", { className: "own", title: own.join("\n") }, own.join(" · ")));
  if (caption.childNodes.length) figure.append(caption);
  const item = element("li", {}, figure);
  item.dataset.photograph = result.photograph;
  return item;
}

// The photograph that was asked about, before its answers.
function givenTile() {
  const image = element("img", { src: at("preview").src, alt: "The photo you are searching with" });
  const caption = element("figcaption", {}, element("span", { className: "own" }, "your photo"));
  return element("li", { className: "given" }, element("figure", {}, element("span", { className: "tile" }, image), caption));
}

function sentenceOf(result, scale, ...more) {
  const text = button(result.text, () => question({ q: result.text }), { className: "text", title: "Photographs for it" });
  return element("li", {}, text, scoreOf(result.score, scale), ...more);
}

function descriptionOf(result) {
  const { text, cosine } = result.nearest;
  const near = result.verbatim
    ? element("span", { className: "copied" }, "copied from a training caption")
    : `nearest training caption (${cosine.toFixed(2)}): ${text}`;
  return sentenceOf(result, [0, 0], element("span", { className: "near" }, near));
}

function listOf(results, scale) {
  const [name, draw] = "verbatim" in results[0] ? ["lines told", descriptionOf]
    : "text" in results[0] ? ["lines", sentenceOf] : ["strip", photographOf];
  return element("ol", { className: name }, ...results.map((result) => draw(result, scale)));
}
