// Light, dark, or as the machine has it; and the colours of the theme for what is drawn on a canvas.

import { remember, remembered, Store } from "./store";

const KEY = "kant-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" } as const;
export type Theme = keyof typeof NEXT;

const dark = matchMedia("(prefers-color-scheme: dark)");

class ThemeStore extends Store {
  chosen: Theme = "auto";

  turn(): void {
    this.chosen = NEXT[this.chosen];
    remember(KEY, this.chosen);
    this.apply();
  }

  apply(): void {
    document.documentElement.dataset.theme = this.chosen === "auto" ? (dark.matches ? "dark" : "light") : this.chosen;
    this.changed();
  }
}

export const theme = new ThemeStore();

export function startTheme(): void {
  const kept = remembered(KEY);
  if (kept && kept in NEXT) theme.chosen = kept as Theme;
  theme.apply();
  dark.addEventListener("change", () => theme.apply());
}

/** The value of a CSS variable in the theme of the moment. */
export const cssVar = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const runColour = (index: number): string => cssVar(`--r${index % 6}`);
