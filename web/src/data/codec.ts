// Reads the columns that pack.py wrote.

export interface Blob64 {
  n: number;
  data: string;
}

export interface PackedColumn extends Blob64 {
  bytes: number;
  delta: boolean;
  zigzag: boolean;
}

/** The bytes behind base64 text of a deflate stream. */
async function inflate(text: string): Promise<Uint8Array> {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** One column of integers: byte planes, then folded signs (zigzag), then differences. */
export async function unpack(blob: PackedColumn): Promise<Float64Array> {
  const planes = await inflate(blob.data);
  const n = blob.n;
  const out = new Float64Array(n);
  for (let plane = 0, unit = 1; plane < blob.bytes; plane++, unit *= 256) {
    for (let i = 0, at = plane * n; i < n; i++, at++) out[i]! += planes[at]! * unit;
  }
  if (blob.zigzag) for (let i = 0; i < n; i++) out[i] = out[i]! % 2 ? -(out[i]! + 1) / 2 : out[i]! / 2;
  if (blob.delta) for (let i = 1; i < n; i++) out[i]! += out[i - 1]!;
  return out;
}

/** A list of strings. */
export async function unpackNames(blob: Blob64): Promise<string[]> {
  return JSON.parse(new TextDecoder().decode(await inflate(blob.data))) as string[];
}
