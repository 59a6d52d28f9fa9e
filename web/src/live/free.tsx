// What is free: of each pool how many GPUs, and how many at most on one node.

import { showCount } from "../show";
import { usePage } from "../store";
import { useAsked } from "./asked";
import type { Top } from "./types";

export function Free() {
  const { source } = usePage();
  const { value } = useAsked<Top>(source.may.includes("top") ? "/v1/top" : null);
  if (!value) return null;
  const most = Math.max(0, ...(value.nodes ?? []).map((node) => (node.gpus_powered ?? node.gpus) - node.gpus_used));
  const capped = (value.nodes ?? []).filter((node) => node.gpus_powered != null);
  const used = (value.nodes ?? []).reduce((sum, node) => sum + node.gpus_used, 0);
  const shared = value.gpus_powered == null ? Infinity : Math.max(0, value.gpus_powered - used);
  const each = (value.nodes ?? []).reduce((sum, node) => sum + Math.max(0, (node.gpus_powered ?? node.gpus) - node.gpus_used), 0);
  const limited = capped.length > 0 || value.gpus_powered != null;
  const said = value.pools.map((pool) => {
    const free = pool.gpus - pool.allocated;
    const name = value.pools.length > 1 ? `${pool.pool}: ` : "";
    return `${name}${showCount(free)} of ${showCount(pool.gpus)} GPUs free`;
  });
  return <p id="free" className="free">{said.join("; ")}{most > 0 && `, at most ${showCount(most)} on one node`}{limited && `; power for ${showCount(Math.min(each, shared))} more`}</p>;
}
