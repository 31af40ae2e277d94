import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { ISnapshot } from '../src/model/seam';
import { COALESCE_MS, LOOKS, POLL_MS, SessionsModel } from '../src/model/sessions';
import { ENDED, NOW, READY, session, snapshot } from './recorded';

class Page {
  isLookedAt = true;
  readonly changed = new Signal<this, void>(this);
}

class Server {
  asked = 0;
  answer: ISnapshot | Error = snapshot();

  snapshot(): Promise<ISnapshot> {
    this.asked += 1;
    return this.answer instanceof Error ? Promise.reject(this.answer) : Promise.resolve(structuredClone(this.answer));
  }
}

const EVENT = { schema_id: 'https://events.openai4s.dev/session/v1' };
let page: Page;
let server: Server;
let model: SessionsModel;

beforeEach(() => {
  vi.useFakeTimers({ now: NOW });
  page = new Page();
  server = new Server();
  model = new SessionsModel(server, page);
});

afterEach(() => {
  model.dispose();
  vi.useRealTimers();
});

async function first(answer: ISnapshot | Error): Promise<void> {
  server.answer = answer;
  model.readSoon();
  await vi.advanceTimersByTimeAsync(0);
}

const START = {
  kernel_id: 'k',
  kernel_name: 'python3-default-session',
  path: 'folder/new.ipynb',
  profile: 'default',
  profile_display_name: 'local session',
  state: 'checking' as const,
  sentence: 'Checking that sessions are isolated.',
  reason: null,
  asked_at: '2026-11-29T21:00:00.000Z',
  elapsed_s: 0
};

describe('a start that is no session yet', () => {
  it('is found by its kernel and its notebook, promises nothing, and keeps the page asking', async () => {
    await first({ ...snapshot(), starts: [START] });
    expect(model.ofKernel('k')).toBe(model.ofPath('folder/new.ipynb'));
    expect(model.ofKernel('k')).toMatchObject({ state: 'starting', met: 0, missing: null, sentence: START.sentence });
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(server.asked).toBe(2);
  });

  it('that was refused is over, with its sentence', async () => {
    const reason = { code: 'QUOTA_EXCEEDED', sentence: 'Too many.', remedy: null, detail: '', actor: '' };
    await first({ ...snapshot(), starts: [{ ...START, state: 'refused', sentence: 'Too many.', reason }] });
    expect(model.ofKernel('k')).toMatchObject({ state: 'ended', phase: 'FAILED', reason });
    await vi.advanceTimersByTimeAsync(10 * POLL_MS);
    expect(server.asked).toBe(1);
  });
});

describe('a kernel that is expected', () => {
  it('is read for until it is there, though no event tells of it', async () => {
    await first(snapshot(session(ENDED)));
    model.expect('k');
    await vi.advanceTimersByTimeAsync(COALESCE_MS);
    expect(server.asked).toBe(2);
    server.answer = { ...snapshot(session(ENDED)), starts: [START] };
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(model.ofKernel('k')?.state).toBe('starting');
  });

  it('that never comes is given up', async () => {
    await first(snapshot(session(ENDED)));
    model.expect('k');
    await vi.advanceTimersByTimeAsync(100 * POLL_MS);
    expect(server.asked).toBeLessThan(10);
  });
});

describe('what may have been missed', () => {
  it('is read when something was lost, and when somebody looks again after a while', async () => {
    await first(snapshot(session(ENDED)));
    model.mayBeStale();
    await vi.advanceTimersByTimeAsync(COALESCE_MS);
    expect(server.asked).toBe(2);
    await vi.advanceTimersByTimeAsync(2 * POLL_MS);
    page.changed.emit();
    await vi.advanceTimersByTimeAsync(0);
    expect(server.asked).toBe(3);
  });

  it('is nothing where nothing is known', async () => {
    await first(snapshot());
    model.mayBeStale();
    page.changed.emit();
    await vi.advanceTimersByTimeAsync(10 * POLL_MS);
    expect(server.asked).toBe(1);
  });
});

describe('reading', () => {
  it('asks nothing before it is told to', async () => {
    await vi.advanceTimersByTimeAsync(600_000);
    expect(server.asked).toBe(0);
  });

  it('does not ask again by itself while there is no session', async () => {
    await first(snapshot(session(ENDED)));
    await vi.advanceTimersByTimeAsync(600_000);
    expect(server.asked).toBe(1);
  });

  it('asks every ten seconds, no oftener, while a session is alive', async () => {
    await first(snapshot(session()));
    await vi.advanceTimersByTimeAsync(6 * POLL_MS);
    expect(POLL_MS).toBeGreaterThanOrEqual(5000);
    expect(server.asked).toBe(7);
  });

  it('makes one read a second of many events, and the last event is not lost', async () => {
    await first(snapshot(session()));
    for (let n = 0; n < 50; n++) {
      model.hear(EVENT);
      await vi.advanceTimersByTimeAsync(20);
    }
    expect(server.asked).toBe(2);
    server.answer = snapshot(session(READY));
    model.hear(EVENT);
    await vi.advanceTimersByTimeAsync(COALESCE_MS);
    expect(model.sessions[0].state).toBe('ready');
  });

  it('reads again after an event that came while it was reading', async () => {
    let answer: (value: ISnapshot) => void = () => undefined;
    server.snapshot = () => {
      server.asked += 1;
      return new Promise(resolve => (answer = resolve));
    };
    model.readSoon();
    await vi.advanceTimersByTimeAsync(0);
    model.hear(EVENT);
    answer(snapshot(session()));
    await vi.advanceTimersByTimeAsync(COALESCE_MS);
    expect(server.asked).toBe(2);
  });

  it('shows what an event says of a start at once, and believes the next read more', async () => {
    await first(snapshot(session()));
    const event = {
      ...EVENT,
      workload_id: session().workload_id,
      phase: 'GRANTED',
      sentence: 'waiting for the worker'
    };
    model.hear({ ...event, met: 1, missing: 'worker_registered' } as { schema_id: string });
    expect(model.sessions[0]).toMatchObject({ missing: 'worker_registered', sentence: 'waiting for the worker' });
    expect(model.sessions[0].conditions.map(condition => condition.met)).toEqual([true, false, false, false]);
    await vi.advanceTimersByTimeAsync(COALESCE_MS);
    expect(model.sessions[0].missing).toBe('allocation_granted');
  });

  it('looks a few times for a kernel whose session is not known yet, without any event', async () => {
    server.answer = snapshot();
    model.kernelSeen('new');
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(server.asked).toBe(2);
    server.answer = snapshot(session({ kernels: [{ ...session().kernels[0], kernel_id: 'new' }] }));
    await vi.advanceTimersByTimeAsync(POLL_MS);
    expect(model.ofKernel('new')).toBeDefined();
  });

  it("stops looking for a kernel that is nobody's session", async () => {
    server.answer = snapshot();
    model.kernelSeen('local');
    await vi.advanceTimersByTimeAsync(600_000);
    expect(server.asked).toBe(LOOKS);
  });

  it("passes over other people's events", async () => {
    model.hear({ schema_id: 'https://events.jupyter.org/jupyter_server/kernel_actions/v1' });
    await vi.advanceTimersByTimeAsync(60_000);
    expect(server.asked).toBe(0);
  });

  it('asks nothing while nobody looks, and at once when somebody does', async () => {
    await first(snapshot(session()));
    page.isLookedAt = false;
    await vi.advanceTimersByTimeAsync(10 * POLL_MS);
    expect(server.asked).toBe(1);
    page.isLookedAt = true;
    page.changed.emit();
    await vi.advanceTimersByTimeAsync(0);
    expect(server.asked).toBe(2);
  });

  it('keeps what it knows when the server is away, tries ever more seldom, and comes back by itself', async () => {
    await first(snapshot(session(READY)));
    server.answer = new Error('connection refused');
    await vi.advanceTimersByTimeAsync(10 * 60_000);
    expect(model.reach).toBe('unreachable');
    expect(model.sessions).toHaveLength(1);
    expect(server.asked).toBeLessThan(15);
    server.answer = snapshot();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(model.reach).toBe('reached');
  });

  it('stops asking a server that has no such endpoints', async () => {
    await first(Object.assign(new Error('Not Found'), { status: 404 }));
    await vi.advanceTimersByTimeAsync(600_000);
    expect(model.reach).toBe('absent');
    expect(server.asked).toBe(1);
  });

  it('is quiet after its end', async () => {
    await first(snapshot(session()));
    model.dispose();
    await vi.advanceTimersByTimeAsync(600_000);
    expect(server.asked).toBe(1);
  });
});

describe('finding', () => {
  it("finds a notebook's newest session by its kernel and by its path", async () => {
    const older = session({ ...ENDED, workload_id: 'older', created_at: '2026-11-29T20:00:00.000Z' });
    await first(snapshot(session(), older));
    const kernel = session().kernels[0];
    expect(model.ofKernel(kernel.kernel_id)?.workload_id).toBe(session().workload_id);
    expect(model.ofPath('folder/analysis.ipynb')?.workload_id).toBe(session().workload_id);
    expect(model.ofPath('other.ipynb')).toBeUndefined();
  });
});
