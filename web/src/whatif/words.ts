// The form of a what-if, and what it asks in the words of `kant whatif`.

import type { Question } from "./types";

export const EMPTY = {
  gpus: "", pods: "1", time: "", queue: "", within: "",
  part: "", from: "", to: "", evict: false,
  quotaOf: "", quotaBy: "", // the queue, and behind a line end the model
  nodes: "", like: "",
  profile: "", until: "",
}; // prettier-ignore

export type Form = typeof EMPTY;

/** The question, without what was left empty; null where nothing is asked. */
export function questionOf(form: Form): Question | null {
  const asked: Question = {};
  if (form.gpus) {
    const words = [`gpus=${form.gpus}`, `pods=${form.pods || "1"}`];
    if (form.time) words.push(`time=${form.time.replaceAll(" ", "")}`);
    if (form.queue) words.push(`queue=${form.queue}`);
    if (form.within) words.push(`within=${form.within}`);
    asked.submit = [words.join(",")];
  }
  if (form.part) {
    const times = form.from || form.to ? `@${form.from}${form.to && `..${form.to}`}` : "";
    asked.drain = [form.part + times];
    asked.evict = form.evict;
  }
  if (form.quotaOf && form.quotaBy) {
    const by = /^[+-]/.test(form.quotaBy) ? form.quotaBy : `+${form.quotaBy}`;
    const [queue, model] = form.quotaOf.split("\n");
    asked.quota = [`${queue}:gpu${model && model !== "any" ? `:${model}` : ""}=${by}`];
  }
  if (form.nodes) asked.nodes = [form.nodes + (form.like && `x${form.like}`)];
  if (form.profile) asked.profile = form.profile;
  if (Object.keys(asked).length === 0) return null;
  if (form.until) asked.until = form.until;
  return asked;
}
