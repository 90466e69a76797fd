// Frames and their fields (SPEC.md §2). The msgpack library encodes frames, and decodes the values of their fields. It
// does not check what the protocol forbids (a key twice, strings that are not UTF-8, bytes after the map), so the
// structure of a frame is read here.

import { decode, encode } from "@msgpack/msgpack";

export const MAX_FRAME = 65_536;
export const MAX_CLAIMS = 4096;
const MAX_DEPTH = 8;
export const MAX_PERMITS = 65_535n;
const MAX_INT = (1n << 63n) - 1n;

/** What the sidecar sent breaks the protocol. */
export class Violation extends Error {}

/** Encodes a request as one whole frame. A field that is undefined is left out. */
export function frame(fields: Record<string, unknown>): Uint8Array {
  const body = encode(fields, { useBigInt64: true, ignoreUndefined: true });
  const whole = Buffer.allocUnsafe(4 + body.length);
  whole.writeUInt32BE(body.length);
  whole.set(body, 4);
  return whole;
}

/** Splits a stream into the bodies of frames. */
export class FrameReader {
  private buffer: Buffer = Buffer.alloc(0);

  push(chunk: Buffer): void {
    this.buffer = this.buffer.length === 0 ? chunk : Buffer.concat([this.buffer, chunk]);
  }

  /** The body of the next frame; undefined: it has not arrived as a whole. */
  next(): Uint8Array | undefined {
    if (this.buffer.length < 4) return undefined;
    const length = this.buffer.readUInt32BE();
    if (length === 0 || length > MAX_FRAME) throw new Violation(`a frame of ${length} bytes`);
    if (this.buffer.length < 4 + length) return undefined;
    const body = this.buffer.subarray(4, 4 + length);
    this.buffer = this.buffer.subarray(4 + length);
    return body;
  }
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function text(bytes: Uint8Array, what: string): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new Violation(`${what} is not UTF-8`);
  }
}

/** The fields of one map. A field is decoded when it is asked for: one that is not defined may have any value. */
export class Fields {
  private readonly values = new Map<string, Uint8Array>();

  /** Reads bytes that are exactly one map. */
  constructor(bytes: Uint8Array) {
    const scan = new Scanner(bytes);
    for (let n = scan.mapHeader(); n > 0; n--) {
      const key = scan.key();
      if (this.values.has(key)) throw new Violation(`the key ${key} twice`);
      // The rows of `lock` and the fields of `err` are defined, and an ignored field in them may nest as well.
      this.values.set(key, scan.value(MAX_DEPTH + ({ lock: 3, holders: 2, waiters: 2, err: 1 }[key] ?? 0)));
    }
    if (!scan.atEnd()) throw new Violation("bytes after the map");
  }

  has(key: string): boolean {
    return this.values.has(key);
  }

  int(key: string, low = 0n, high = MAX_INT): bigint {
    const bytes = this.get(key);
    const first = bytes[0]!;
    const isInt = first <= 0x7f || first >= 0xe0 || (first >= 0xcc && first <= 0xd3);
    const value = isInt ? BigInt(decode(bytes, { useBigInt64: true }) as number | bigint) : -1n;
    if (value < low || value > high) throw new Violation(`${key} is not an integer in its range`);
    return value;
  }

  text(key: string, limit = MAX_FRAME): string {
    const bytes = this.get(key);
    const header = stringHeader(bytes);
    if (header === undefined || bytes.length - header > limit) throw new Violation(`${key} is not a string in its range`);
    return text(bytes.subarray(header), key);
  }

  flag(key: string): boolean {
    const first = this.get(key)[0];
    if (first !== 0xc2 && first !== 0xc3) throw new Violation(`${key} is not a bool`);
    return first === 0xc3;
  }

  map(key: string): Fields {
    return new Fields(this.get(key));
  }

  /** The maps of an array. */
  maps(key: string): Fields[] {
    const scan = new Scanner(this.get(key));
    return Array.from({ length: scan.arrayHeader() }, () => new Fields(scan.value(MAX_DEPTH + 1)));
  }

  private get(key: string): Uint8Array {
    const bytes = this.values.get(key);
    if (bytes === undefined) throw new Violation(`${key} is missing`);
    return bytes;
  }
}

/** The length of the header of a string, in bytes; undefined: it is no string. */
function stringHeader(bytes: Uint8Array): number | undefined {
  const first = bytes[0]!;
  if (first >= 0xa0 && first <= 0xbf) return 1;
  return { 0xd9: 2, 0xda: 3, 0xdb: 5 }[first];
}

/** Finds where msgpack values end. */
class Scanner {
  private at = 0;
  private readonly view: DataView;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  atEnd(): boolean {
    return this.at === this.bytes.length;
  }

  mapHeader(): number {
    const first = this.uint(1);
    if (first >= 0x80 && first <= 0x8f) return first & 0x0f;
    if (first === 0xde) return this.uint(2);
    if (first === 0xdf) return this.uint(4);
    throw new Violation("a body or a field that is not a map");
  }

  arrayHeader(): number {
    const first = this.uint(1);
    if (first >= 0x90 && first <= 0x9f) return first & 0x0f;
    if (first === 0xdc) return this.uint(2);
    if (first === 0xdd) return this.uint(4);
    throw new Violation("a field that is not an array");
  }

  key(): string {
    const bytes = this.value(0);
    const header = stringHeader(bytes);
    if (header === undefined) throw new Violation("a key that is not a string");
    return text(bytes.subarray(header), "a key");
  }

  /** Passes one value in which arrays and maps nest at most `depth` deep, and returns its bytes. */
  value(depth: number): Uint8Array {
    const start = this.at;
    this.skip(depth);
    return this.bytes.subarray(start, this.at);
  }

  private skip(depth: number): void {
    const first = this.uint(1);
    if (first <= 0x7f || first >= 0xe0) return; // fixint
    if (first <= 0x8f) return this.skipMany(2 * (first & 0x0f), depth); // fixmap
    if (first <= 0x9f) return this.skipMany(first & 0x0f, depth); // fixarray
    if (first <= 0xbf) return this.advance(first & 0x1f); // fixstr
    switch (first) {
      case 0xc0: // nil
      case 0xc2: // false
      case 0xc3: // true
        return;
      case 0xc4: // bin, str
      case 0xd9:
        return this.advance(this.uint(1));
      case 0xc5:
      case 0xda:
        return this.advance(this.uint(2));
      case 0xc6:
      case 0xdb:
        return this.advance(this.uint(4));
      case 0xc7: // ext: the length, then a byte for the type
        return this.advance(this.uint(1) + 1);
      case 0xc8:
        return this.advance(this.uint(2) + 1);
      case 0xc9:
        return this.advance(this.uint(4) + 1);
      case 0xcc: // integers and floats
      case 0xd0:
        return this.advance(1);
      case 0xcd:
      case 0xd1:
        return this.advance(2);
      case 0xca:
      case 0xce:
      case 0xd2:
        return this.advance(4);
      case 0xcb:
      case 0xcf:
      case 0xd3:
        return this.advance(8);
      case 0xd4: // fixext: a byte for the type, then the data
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.advance(1 + (1 << (first - 0xd4)));
      case 0xdc:
        return this.skipMany(this.uint(2), depth);
      case 0xdd:
        return this.skipMany(this.uint(4), depth);
      case 0xde:
        return this.skipMany(2 * this.uint(2), depth);
      case 0xdf:
        return this.skipMany(2 * this.uint(4), depth);
      default:
        throw new Violation("a byte that begins no value");
    }
  }

  private skipMany(values: number, depth: number): void {
    if (depth === 0) throw new Violation("arrays and maps that nest too deep");
    for (let i = 0; i < values; i++) this.skip(depth - 1);
  }

  private uint(bytes: 1 | 2 | 4): number {
    const at = this.at;
    this.advance(bytes);
    if (bytes === 1) return this.view.getUint8(at);
    return bytes === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  private advance(bytes: number): void {
    this.at += bytes;
    if (this.at > this.bytes.length) throw new Violation("a body that is cut short");
  }
}
