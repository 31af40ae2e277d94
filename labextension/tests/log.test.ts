import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { LogFollower, MOST_LINES, MOST_STREAMS, RETRY_MS } from '../src/model/log';
import { ILogEvent } from '../src/model/seam';

/** One request of a follower, answered by the test. */
class Asked {
  constructor(
    readonly rank: number | null,
    readonly after: string | null,
    readonly signal: AbortSignal
  ) {}

  async *answer(): AsyncGenerator<ILogEvent[]> {
    for (;;) {
      while (this._told.length > 0) {
        yield this._told.shift() ?? [];
      }
      if (this._error !== null) {
        throw this._error;
      }
      if (this._isOver) {
        return;
      }
      await new Promise<void>(resolve => (this._wake = resolve));
    }
  }

  tell(...lines: number[]): Promise<unknown> {
    this._told.push(lines.map(line => ({ id: `1:${line}`, line: `line ${line}` })));
    return this._woken();
  }

  end(why: string): Promise<unknown> {
    this._told.push([{ end: why }]);
    this._isOver = true;
    return this._woken();
  }

  break(error: Error | null = new Error('network')): Promise<unknown> {
    this._error = error;
    this._isOver = true;
    return this._woken();
  }

  private _woken(): Promise<unknown> {
    this._wake();
    return vi.advanceTimersByTimeAsync(0);
  }

  private readonly _told: ILogEvent[][] = [];
  private _isOver = false;
  private _error: Error | null = null;
  private _wake: () => void = () => undefined;
}

class Refusal extends Error {
  constructor(readonly status: number) {
    super('a sentence');
  }
}

let asked: Asked[];
let lines: string[];
let made: LogFollower[];

function follower(): LogFollower {
  const one = new LogFollower({
    follow: (rank, _, after, signal) => {
      asked.push(new Asked(rank, after, signal));
      return asked[asked.length - 1].answer();
    }
  });
  one.added.connect((_, added) => (lines = added === null ? [] : [...lines, ...added]));
  made.push(one);
  return one;
}

beforeEach(() => {
  vi.useFakeTimers();
  [asked, lines, made] = [[], [], []];
});

afterEach(() => {
  made.forEach(each => {
    each.dispose();
  });
  vi.useRealTimers();
});

describe('a log that is followed', () => {
  it('has no stream while nobody sees it', async () => {
    const log = follower();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).toHaveLength(0);
    log.see(true);
    await asked[0].tell(1);
    expect(log.state).toBe('following');
    log.see(false);
    expect(asked[0].signal.aborted).toBe(true);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(asked).toHaveLength(1);
  });

  it('goes on behind the last line, after a break and after it was hidden', async () => {
    const log = follower();
    log.see(true);
    await asked[0].tell(1, 2);
    await asked[0].tell(3);
    await asked[0].break();
    expect(log.state).toBe('interrupted');
    await vi.advanceTimersByTimeAsync(RETRY_MS);
    expect(asked[1].after).toBe('1:3');
    await asked[1].tell(4);
    log.see(false);
    await asked[1].tell(5); // comes too late, and again with the next stream
    log.see(true);
    expect(asked[2].after).toBe('1:4');
    await asked[2].tell(5);
    expect(lines).toEqual(['line 1', 'line 2', 'line 3', 'line 4', 'line 5']);
  });

  it('asks no oftener than every five seconds, and ever more seldom', async () => {
    const log = follower();
    log.see(true);
    await asked[0].break();
    for (let n = 1; n < 7; n++) {
      const before = Date.now();
      while (asked.length === n) {
        await vi.advanceTimersByTimeAsync(100);
      }
      const waited = Date.now() - before;
      expect(waited).toBeGreaterThanOrEqual(5000);
      expect(waited).toBeLessThanOrEqual(60_100);
      await asked[n].break();
    }
    expect(RETRY_MS).toBeGreaterThanOrEqual(5000);
  });

  it('takes a stream that ends without its end as broken', async () => {
    const log = follower();
    log.see(true);
    await asked[0].break(null);
    expect(log.state).toBe('interrupted');
  });

  it('ends with the reason, and asks no more', async () => {
    const log = follower();
    log.see(true);
    await asked[0].tell(1);
    await asked[0].end('The session was stopped.');
    expect([log.state, log.told]).toEqual(['ended', 'The session was stopped.']);
    log.see(false);
    log.see(true);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(asked).toHaveLength(1);
  });

  it('that cannot be read says why, and is asked for again when a person wants it', async () => {
    const log = follower();
    log.see(true);
    await asked[0].break(new Refusal(404));
    expect([log.state, log.told]).toEqual(['refused', 'a sentence']);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(asked).toHaveLength(1);
    log.pause(false);
    expect(asked).toHaveLength(2);
  });

  it('is tried again where too many are followed on the server', async () => {
    const log = follower();
    log.see(true);
    await asked[0].break(new Refusal(429));
    expect([log.state, log.told]).toEqual(['interrupted', 'a sentence']);
    await vi.advanceTimersByTimeAsync(RETRY_MS);
    expect(asked).toHaveLength(2);
  });

  it('stands still when a person pauses it, and loses nothing', async () => {
    const log = follower();
    log.see(true);
    await asked[0].tell(1);
    log.pause(true);
    log.see(false);
    log.see(true);
    expect(log.state).toBe('paused');
    expect(asked).toHaveLength(1);
    log.pause(false);
    expect(asked[1].after).toBe('1:1');
  });

  it("begins anew with another worker's", async () => {
    const log = follower();
    log.see(true);
    await asked[0].tell(1);
    log.choose(2);
    expect(lines).toEqual([]);
    expect([asked[1].rank, asked[1].after]).toEqual([2, null]);
    expect(asked[0].signal.aborted).toBe(true);
    await asked[1].end('over');
    log.choose(null);
    expect([asked[2].rank, log.state]).toEqual([null, 'connecting']);
  });

  it('takes few of the connections of a page', async () => {
    const many = Array.from({ length: MOST_STREAMS + 1 }, follower);
    many.forEach(each => {
      each.see(true);
    });
    expect(asked).toHaveLength(MOST_STREAMS);
    expect(many[MOST_STREAMS].state).toBe('crowded');
    many[0].see(false);
    await vi.advanceTimersByTimeAsync(RETRY_MS);
    expect(asked).toHaveLength(MOST_STREAMS + 1);
  });

  it('hands on no more lines at once than are kept', async () => {
    const log = follower();
    log.see(true);
    await asked[0].tell(...Array.from({ length: MOST_LINES + 5 }, (_, n) => n));
    expect(lines).toHaveLength(MOST_LINES);
    expect(lines[0]).toBe('line 5');
  });
});
