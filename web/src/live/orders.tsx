// Orders to a Kubernetes cluster, by the rights of whoever is signed in: about the priority of a job, queues and nodes.

import { useState } from "react";
import { send } from "../data/api";
import { usePage } from "../store";
import { pathOf } from "./parts";

/** Gives an order and keeps what came of it, in one sentence. */
function useOrder(): [string, (path: string, done: string, body?: unknown) => Promise<void>] {
  const [said, setSaid] = useState("");
  const give = async (path: string, done: string, body?: unknown) => {
    try {
      await send("POST", path, body);
      setSaid(done);
    } catch (reason) {
      setSaid(reason instanceof Error ? reason.message : String(reason));
    }
  };
  return [said, give];
}

/** Another priority for a job that waits. */
export function Rank({ job, priority, ordered }: { job: string; priority: number; ordered: () => void }) {
  const [typed, setTyped] = useState(String(priority));
  const [said, give] = useOrder();
  const enter = async (event: React.FormEvent) => {
    event.preventDefault();
    await give(pathOf(job, "update"), `Job ${job} has priority ${typed}.`, { priority: Number(typed) });
    ordered();
  };
  return (
    <form className="orders" id="rank" onSubmit={(event) => void enter(event)}>
      <label>Priority <input type="number" step={1} required size={8} value={typed} onChange={(event) => setTyped(event.target.value)} /></label>{" "}
      <button type="submit">Set</button> <span className="hint" role="status">{said}</span>
    </form>
  );
}

/** Holds, drains and opens queues, frees nodes and gives them back. */
export function ClusterOrders({ queues }: { queues: string[] }) {
  const { source } = usePage();
  const nodes = source.runs[0]?.cluster?.names ?? [];
  return (
    <>
      {source.may.includes("order_queue") && <OrderOf kind="queue" names={queues} verbs={[["hold", "Hold", "starts nothing"], ["drain", "Drain", "accepts no new jobs"], ["release", "Open", "is open"]]} />}
      {source.may.includes("order_node") && <OrderOf kind="node" names={[...nodes]} verbs={[["drain", "Drain", "is being freed"], ["release", "Release", "accepts pods again"]]} />}
    </>
  );
}

function OrderOf({ kind, names, verbs }: { kind: "queue" | "node"; names: string[]; verbs: [string, string, string][] }) {
  const [chosen, setChosen] = useState("");
  const [said, give] = useOrder();
  const name = names.includes(chosen) ? chosen : (names[0] ?? "");
  if (!name) return null;
  return (
    <div className="orders" id={`order-${kind}`}>
      <label>{kind === "queue" ? "Queue" : "Node"} <select value={name} onChange={(event) => setChosen(event.target.value)}>
        {names.map((each) => <option key={each} value={each}>{each}</option>)}
      </select></label>{" "}
      {verbs.map(([verb, words, done]) => (
        <button key={verb} type="button" onClick={() => void give(`/v1/${kind}s/${encodeURIComponent(name)}/${verb}`, `${kind === "queue" ? "Queue" : "Node"} ${name} ${done}.`)}>{words}</button>
      ))}{" "}
      <span className="hint" role="status">{said}</span>
    </div>
  );
}
