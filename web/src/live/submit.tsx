// A command is queued from the page, for those whose token allows it.

import { useState } from "react";
import { send } from "../data/api";
import { usePage } from "../store";
import { addressOf } from "./parts";

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const NEW = { command: "", workdir: "/tmp", gpus: "1", minutes: "", queue: "", name: "" };

export function Submit() {
  const { source } = usePage();
  const [typed, setTyped] = useState(NEW);
  const [said, setSaid] = useState("");
  const [job, setJob] = useState("");
  if (!source.may.includes("submit")) return null;
  const field = (name: keyof typeof NEW) => ({
    value: typed[name],
    onChange: (event: React.ChangeEvent<HTMLInputElement>) => setTyped({ ...typed, [name]: event.target.value }),
  });
  const enter = async (event: React.FormEvent) => {
    event.preventDefault();
    setJob("");
    try {
      const asked = {
        command: ["sh", "-c", typed.command], workdir: typed.workdir, env: { PATH }, gpus: Number(typed.gpus),
        ...(typed.minutes && { time_s: 60 * Number(typed.minutes) }), ...(typed.queue && { queue: typed.queue }), ...(typed.name && { name: typed.name }),
      };
      const { jobs } = await send<{ jobs: string[] }>("POST", "/v1/jobs", asked);
      setJob(jobs[0]!);
      setSaid("");
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
        <label>Into queue <input type="text" size={10} list="queue-names" {...field("queue")} /></label>
        <datalist id="queue-names">{(source.runs[0]?.queues ?? []).map((name) => <option key={name} value={name} />)}</datalist>
        <label>Title <input type="text" size={10} {...field("name")} /></label>
        <button type="submit">Submit</button>
        <span className="hint" role="status">{job ? <>Queued as job <a href={addressOf(job)}>{job}</a>.</> : said}</span>
      </form>
    </details>
  );
}
