// Uploaded photos are stored in this browser only, by their hash, so that Back and Reload find them again.
const MAX_STORED = 20;
const given = new Map();

function store(mode) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("jointspace", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("photographs");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => resolve(opening.result.transaction("photographs", mode).objectStore("photographs"));
  });
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Returns the SHA-256 of a file as hex, or a random name on pages that are neither from https nor from localhost, to
// which browsers do not offer SHA-256.
async function nameOf(file) {
  const bytes = crypto.subtle
    ? new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()))
    : crypto.getRandomValues(new Uint8Array(32));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function keep(file) {
  const name = await nameOf(file);
  given.set(name, file);
  try {
    const kept = await store("readwrite");
    await done(kept.put({ file, when: Date.now() }, name));
    const names = await done(kept.getAllKeys()), values = await done(kept.getAll());
    const old = names.map((one, i) => [values[i].when, one]).sort((a, b) => b[0] - a[0]).slice(MAX_STORED);
    for (const [, one] of old) kept.delete(one);
  } catch {
    // A private window may not store files. `given` keeps the photo until the page is closed.
  }
  return name;
}

// Returns the stored file with this name, or null if the browser no longer has the file or cannot read its storage.
async function kept(name) {
  if (given.has(name)) return given.get(name);
  try {
    const found = await done((await store("readonly")).get(name));
    if (found) given.set(name, found.file);
    return found ? found.file : null;
  } catch {
    return null;
  }
}
