// The form of a what-if: what may be changed, each kind in a group of its own. What is left empty is not asked.

import { useEffect, useState } from "react";
import { ask } from "../data/api";
import type { Cluster } from "../data/model";
import { usePage } from "../store";
import type { Form } from "./words";

interface Quota {
  queue: string;
  model: string;
}

interface Profiles {
  profiles: { name: string; about: string }[];
}

const MOST_NAMES = 300;

/** The names that a drain may have, the widest parts first. */
function partsOf(cluster: Cluster | null): string[] {
  if (!cluster) return [];
  const spines = cluster.spines.flatMap((path) => path.split(" / "));
  const leaves = cluster.groups.map(({ name }) => name).filter((name) => !/^nodes \d+ to \d+$/.test(name)); // the page's own
  const parts = [...spines, ...leaves, ...cluster.names].filter(Boolean);
  return [...new Set(parts)].slice(0, MOST_NAMES);
}

interface Props {
  form: Form;
  change: (part: Partial<Form>) => void;
}

export function Fields({ form, change }: Props) {
  const { source } = usePage();
  const cluster = source.runs[0]?.cluster ?? null;
  const [quotas, setQuotas] = useState<Quota[]>([]);
  const [queues, setQueues] = useState<string[]>([]);
  const [profiles, setProfiles] = useState<Profiles["profiles"]>([]);
  useEffect(() => {
    const gone = new AbortController();
    const known = async () => {
      const { queues: rows } = await ask<{ queues: { queue: string; model: string; nominal_gpus: number | null }[] }>("/v1/queues", gone.signal);
      const names = [...new Set(rows.map((row) => row.queue))];
      setQueues(names);
      setQuotas(rows.filter((row) => row.nominal_gpus !== null));
      setProfiles((await ask<Profiles>("/v1/profiles", gone.signal)).profiles);
    };
    known().catch(() => undefined); // the page says when there is no connection; names are a help only
    return () => gone.abort();
  }, []);
  const text = (key: keyof Form, label: string, example: string, more: React.InputHTMLAttributes<HTMLInputElement> = {}) => (
    <label>
      <span>{label}</span>
      <input
        type="text" name={key} value={String(form[key])} placeholder={example} autoComplete="off" spellCheck={false}
        onChange={(event) => change({ [key]: event.target.value.trim() })} {...more}
      />
    </label>
  );
  const count = (key: keyof Form, label: string, example: string, step = "1") =>
    text(key, label, example, { type: "number", min: step === "1" ? 1 : 0, step, inputMode: "decimal" });
  const select = (key: keyof Form, label: string, options: [string, string][], more: (value: string) => Partial<Form> = (value) => ({ [key]: value })) => (
    <label>
      <span>{label}</span>
      <select name={key} value={String(form[key])} onChange={(event) => change(more(event.target.value))}>
        {options.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
      </select>
    </label>
  );
  const all = queues.length ? queues : ["default"];
  useEffect(() => {
    if (queues.length && !queues.includes(form.queue)) change({ queue: queues.includes("default") ? "default" : queues[0]! });
  }, [queues, form.queue, change]);
  return (
    <div className="changes">
      <fieldset>
        <legend>Submit a job</legend>
        {count("gpus", "GPUs of each pod", "8", "any")}
        {count("pods", "pods", "1")}
        {text("time", "runs for", "4h", { required: form.gpus !== "" })}
        {select("queue", "queue", all.map((name): [string, string] => [name, name]))}
        {select("within", "near each other", [["", "anywhere"], ["leaf", "in one leaf if it can"], ["spine", "in one spine if it can"]])}
      </fieldset>
      <fieldset>
        <legend>Drain</legend>
        {text("part", "node, leaf or spine", "node-00001", { list: "whatif-parts" })}
        {text("from", "from", "now", { title: "such as +2h, or 22:00Z" })}
        {text("to", "until", "for good", { title: "such as +8h, or 06:00Z" })}
        <label className="check">
          <input type="checkbox" name="evict" checked={form.evict} onChange={(event) => change({ evict: event.target.checked })} />
          <span>stop the jobs that run there</span>
        </label>
      </fieldset>
      <fieldset>
        <legend>Change a quota</legend>
        {quotas.length === 0 && <p className="hint">No queue has a quota of GPUs.</p>}
        {quotas.length > 0 && (
          <>
            {select(
              "quotaOf", "queue", [["", "none"], ...quotas.map(({ queue, model }): [string, string] => [`${queue}\n${model}`, model && model !== "any" ? `${queue} (${model})` : queue])],
              (value) => ({ quotaOf: value }),
            )}
            {text("quotaBy", "GPUs more or less", "+64", { pattern: "[+\\-]?[0-9.]+" })}
          </>
        )}
      </fieldset>
      <fieldset>
        <legend>Add nodes</legend>
        {count("nodes", "nodes", "10")}
        {text("like", "like node", "most of them", { list: "whatif-nodes" })}
      </fieldset>
      <fieldset>
        <legend>Cancel jobs</legend>
        <label>
          <span>jobs</span>
          <input type="text" name="cancel" value={form.cancel} placeholder="12 14" autoComplete="off" spellCheck={false} onChange={(event) => change({ cancel: event.target.value })} />
        </label>
      </fieldset>
      <fieldset>
        <legend>Change the profile</legend>
        {select("profile", "profile", [["", "as it is"], ...profiles.map(({ name }): [string, string] => [name, name])])}
        <p className="hint">{profiles.find(({ name }) => name === form.profile)?.about}</p>
      </fieldset>
      <fieldset>
        <legend>Look ahead</legend>
        {text("until", "until", "all work is done", { title: "such as +7d, or 22:00Z" })}
      </fieldset>
      <datalist id="whatif-parts">{partsOf(cluster).map((name) => <option key={name} value={name} />)}</datalist>
      <datalist id="whatif-nodes">{cluster?.names.slice(0, MOST_NAMES).map((name) => <option key={name} value={name} />)}</datalist>
    </div>
  );
}
