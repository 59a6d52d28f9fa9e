// Columns of numbers that can grow: typed arrays, so that millions of rows stay small and quick to scan.

type Numbers = Float64Array | Int32Array | Uint8Array;

/** One column. Loops read `data` up to `length`; `data` is another array after the column has grown. */
export class Column<A extends Numbers> {
  private constructor(
    private readonly make: (length: number) => A,
    public data: A,
    public length: number,
    private readonly empty: number,
  ) {}

  /** Whole numbers below 2**31. Rows that nobody has set hold `empty`. */
  static ints(from: ArrayLike<number> = [], empty = 0): Column<Int32Array> {
    return new Column((length) => new Int32Array(length), Int32Array.from(from), from.length, empty);
  }

  /** Whole numbers below 2**53 (times in microseconds), or shares. */
  static floats(from: ArrayLike<number> = [], empty = 0): Column<Float64Array> {
    return new Column((length) => new Float64Array(length), Float64Array.from(from), from.length, empty);
  }

  get(row: number): number {
    return this.data[row]!;
  }

  set(row: number, value: number): void {
    if (row >= this.data.length) {
      const wider = this.make(Math.max(16, 2 * this.data.length, row + 1));
      wider.set(this.data);
      this.data = wider;
    }
    if (row >= this.length) {
      this.data.fill(this.empty, this.length, row);
      this.length = row + 1;
    }
    this.data[row] = value;
  }

  push(value: number): void {
    this.set(this.length, value);
  }

  /** The rows there are, without the room to grow. */
  values(): A {
    return this.data.subarray(0, this.length) as A;
  }
}

export type Ints = Column<Int32Array>;
export type Floats = Column<Float64Array>;

/** How many values of the ascending `values` are at most `bound`. */
export function countUpTo(values: ArrayLike<number>, bound: number, length = values.length): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle]! <= bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
