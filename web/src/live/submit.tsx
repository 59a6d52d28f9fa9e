// A command is queued from the page, for those whose token allows it.

import { useState } from "react";
import { send } from "../data/api";
import { remember, remembered, usePage, type Source } from "../store";
import { addressOf } from "./parts";

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const KEPT = "kant-submit";

/** The folder and queue of the last job submitted from here; else the caller's home, and its first queue. */
function begins({ home, own, runs }: Source) {
  const queues = [...own, ...(runs[0]?.queues ?? []).filter((name) => !own.includes(name))];
  const queue = own[0] ?? (queues.includes("default") ? "default" : (queues[0] ?? "default"));
  const [workdir = home || "/tmp", last = queue] = JSON.parse(remembered(KEPT) ?? "[]") as string[];
  return { queues, typed: { command: "", workdir, gpus: "1", minutes: "", queue: queues.includes(last) ? last : queue, name: "" } };
}

export function Submit() {
  const { source } = usePage();
  const { queues, typed: first } = begins(source);
  const [typed, setTyped] = useState(first);
  const offered = queues.includes(typed.queue) ? queues : [typed.queue, ...queues];
  const [said, setSaid] = useState("");
  const [job, setJob] = useState("");
  if (!source.may.includes("submit")) return null;
  const field = (name: keyof typeof first) => ({
    value: typed[name],
    onChange: (event: React.ChangeEvent<HTMLInputElement | HTMLSelectElement>) => setTyped({ ...typed, [name]: event.target.value }),
  });
  const enter = async (event: React.FormEvent) => {
    event.preventDefault();
    setJob("");
    try {
      const asked = {
        command: ["sh", "-c", typed.command], workdir: typed.workdir, gpus: Number(typed.gpus),
        env: { PATH, ...(source.home && { HOME: source.home }) }, queue: typed.queue,
        ...(typed.minutes && { time_s: 60 * Number(typed.minutes) }), ...(typed.name && { name: typed.name }),
      };
      const { jobs } = await send<{ jobs: string[] }>("POST", "/v1/jobs", asked);
      setJob(jobs[0]!);
      setSaid("");
      remember(KEPT, JSON.stringify([typed.workdir, typed.queue]));
      setTyped({ ...typed, command: "" });
    } catch (reason) {
      setSaid(reason instanceof Error ? reason.message : String(reason));
    }
  };
  return (
    <details className="submit" id="submit">
      <summary>Submit a job</summary>
      <form className="orders" onSubmit={(event) => void enter(event)}>
        <label className="long">Command <input type="text" required spellCheck={false} placeholder="python train.py" {...field("command")} /></label>
        <label className="long">Folder <input type="text" required spellCheck={false} {...field("workdir")} /></label>
        <label>GPUs <input type="number" min={0} step="any" required {...field("gpus")} /></label>
        <label>Limit, minutes <input type="number" min={1} step="any" {...field("minutes")} /></label>
        <label>Into queue <select {...field("queue")}>
          {offered.map((name) => <option key={name}>{name}</option>)}
        </select></label>
        <label>Title <input type="text" size={10} {...field("name")} /></label>
        <button type="submit">Submit</button>
        <span className="hint" role="status">{job ? <>Queued as job <a href={addressOf(job)}>{job}</a>.</> : said}</span>
      </form>
    </details>
  );
}
