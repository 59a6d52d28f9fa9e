import { defineConfig } from "vite";

// One script and one style sheet, which Python puts into one HTML file: a report, or the page of a live Kant.
export default defineConfig({
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  build: {
    target: "es2022",
    outDir: "../src/kant/report/page",
    emptyOutDir: true,
    lib: { entry: "src/main.tsx", name: "kant", formats: ["iife"], fileName: () => "page.js", cssFileName: "page" },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:5268" } },
});
