// Writes SOURCES beside the bundle: a digest of everything that it is built from, so that a test sees a stale bundle;
// and LICENSES, the licences of what it holds.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = dirname(fileURLToPath(import.meta.url));
const page = join(web, "..", "src", "kant", "report", "page");
const LEFT_OUT = new Set(["node_modules", "dist", ".vite"]);
const BUNDLED = ["react", "react-dom", "scheduler", "uplot"];

function files(folder, prefix = "") {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    if (LEFT_OUT.has(entry.name)) return [];
    const path = prefix + entry.name;
    return entry.isDirectory() ? files(join(folder, entry.name), `${path}/`) : [path];
  });
}

const whole = createHash("sha256");
for (const path of files(web).sort()) {
  const one = createHash("sha256").update(readFileSync(join(web, path))).digest("hex");
  whole.update(`${one}  ${path}\n`);
}
writeFileSync(join(page, "SOURCES"), `${whole.digest("hex")}\n`);

const licences = BUNDLED.map((name) => {
  const folder = join(web, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(page, "LICENSES"), licences.join("\n----\n\n"));
