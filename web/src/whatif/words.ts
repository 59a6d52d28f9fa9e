// The form of a what-if, and what it asks in the words of `kant whatif`.

import type { StartsNow } from "../live/types";
import type { Question } from "./types";

export const EMPTY = {
  gpus: "", pods: "1", time: "", queue: "", within: "",
  part: "", from: "", to: "", evict: false,
  quotaOf: "", quotaBy: "", // the queue, and behind a line end the model
  nodes: "", like: "", cancel: "",
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
  const cancel = form.cancel.split(/[\s,]+/).filter(Boolean);
  if (cancel.length) asked.cancel = cancel;
  if (form.profile) asked.profile = form.profile;
  if (Object.keys(asked).length === 0) return null;
  if (form.until) asked.until = form.until;
  return asked;
}

/** The form that asks for a change after which a job starts; null where a what-if has no words for it. */
export function formOf(change: StartsNow): Form | null {
  const { stopped, quotas, nodes, yields } = change;
  if (yields || quotas.length > 1 || nodes.length > 1) return null;
  const [quota, node] = [quotas[0], nodes[0]];
  if (quota && (quota.resource !== "gpu" || quota.limit !== "quota")) return null;
  return {
    ...EMPTY,
    cancel: stopped.map(({ job }) => job).join(" "),
    ...(quota && { quotaOf: `${quota.queue}\n${quota.model}`, quotaBy: `+${quota.more / 1000}` }),
    ...(node && { nodes: "1", like: node }),
  };
}
