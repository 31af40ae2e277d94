import { beforeEach, describe, expect, it } from 'vitest';

import { INotice, NoticeBoard } from '../src/model/notices';
import { ISession, IStart } from '../src/model/seam';
import { asSession } from '../src/model/starts';
import { ENDED, NOW, READY, session, snapshot, trans } from './recorded';

const ALL = { starting: true, ending: true, ended: true };
let board: NoticeBoard;

beforeEach(() => {
  board = new NoticeBoard(trans);
});

function shown(changes: Partial<ISession>, choice = ALL, isHere = true): INotice[] {
  return board.wanted(snapshot(session(changes)), () => isHere, NOW, choice);
}

const WARNED: Partial<ISession> = {
  ...READY,
  lease_ends_at: '2026-11-29T21:08:00.000Z',
  kernels: session().kernels.map(kernel => ({
    ...kernel,
    lease: { idle_ends_at: null, absolute_ends_at: null, warned: true, can_be_kept: true }
  }))
};

describe('a start', () => {
  it('is one notification whose text follows the conditions, with Cancel', () => {
    const [one] = shown({});
    const [two] = shown({ missing: 'worker_registered', sentence: '1 of 4 conditions: waiting for the worker' });
    expect(one.key).toBe(two.key);
    expect(one.text).toContain('analysis.ipynb: 0 of 4 conditions');
    expect(two.text).toContain('1 of 4 conditions: waiting for the worker');
    expect(two.actions.map(action => action.name)).toContain('stop');
  });

  it('names the expected time', () => {
    const waiting = {
      sentence: 'waiting for resources',
      estimated_start: '2026-11-29T21:30:00.000Z',
      estimate_as_of: null,
      position: 3
    };
    expect(shown({ waiting })[0].text).toMatch(/^analysis.ipynb: queued: waiting for resources, estimated /);
  });

  it('ends in a passing notification, under the same key', () => {
    const [started] = shown({});
    const [ready] = shown(READY);
    expect(ready).toMatchObject({ key: started.key, kind: 'success', isPassing: true });
  });

  it('that is checked first becomes the same notification, and a refused one is told by JupyterLab', () => {
    const [kernel] = session().kernels;
    const start: IStart = {
      ...kernel,
      profile: 'default',
      profile_display_name: 'local session',
      state: 'checking',
      sentence: 'Checking that it is isolated.',
      reason: null,
      asked_at: NOW.toISOString(),
      elapsed_s: 1
    };
    const [checked] = board.wanted(snapshot(asSession(start)), () => true, NOW, ALL);
    expect(checked.text).toBe('analysis.ipynb: Checking that it is isolated.');
    expect(shown({})[0].key).toBe(checked.key);
    const reason = { code: 'ISOLATION_UNVERIFIED', sentence: 'No.', remedy: null, detail: '', actor: '' };
    const refused = asSession({ ...start, state: 'refused', sentence: 'No.', reason });
    expect(board.wanted(snapshot(refused), () => true, NOW, ALL)).toEqual([]);
  });

  it('of a kernel that is not open here is silent', () => {
    expect(shown({}, ALL, false)).toEqual([]);
  });

  it('of a session that was ready when the page was loaded is silent', () => {
    expect(shown(READY)).toEqual([]);
  });
});

describe('an end that is near', () => {
  it('is warned of with Keep, also where the page was loaded after the event', () => {
    const [notice] = shown(WARNED);
    expect(notice.kind).toBe('warning');
    expect(notice.text).toContain('in 8 min');
    expect(notice.actions.map(action => action.name)).toEqual(['keep']);
  });

  it('is taken back when the session was kept', () => {
    expect(shown(WARNED)).toHaveLength(1);
    expect(shown(READY)).toEqual([]);
  });

  it('that cannot be moved has no Keep', () => {
    const kernels = WARNED.kernels?.map(kernel => ({
      ...kernel,
      lease: kernel.lease && { ...kernel.lease, can_be_kept: false }
    }));
    expect(shown({ ...WARNED, kernels })[0].actions).toEqual([]);
  });

  it("of the machine's time is told after the event, with Extend where that is possible", () => {
    const soon = { ...READY, walltime_ends_at: '2026-11-29T21:09:00.000Z', can_extend: true };
    expect(shown(soon)).toEqual([]);
    board.walltimeWarned(session().workload_id, true);
    expect(shown(soon)[0].actions.map(action => action.name)).toEqual(['extend']);
    board.walltimeWarned(session().workload_id, false);
    expect(shown(soon)).toEqual([]);
  });

  it('of a machine that was lost is not told of the one that took its place', () => {
    const long = { ...READY, walltime_ends_at: '2026-11-29T22:09:00.000Z' };
    shown(long);
    board.walltimeWarned(session().workload_id, true);
    expect(shown(long)).toHaveLength(1);
    const texts = shown({ ...long, recoveries: 1 }).map(notice => notice.text);
    expect(texts.filter(text => text.includes("machine's time ends"))).toEqual([]);
  });

  it("of the machine's time is announced once, and a later end again", () => {
    const at = (walltime_ends_at: string): string => shown({ ...READY, walltime_ends_at })[0].key;
    board.walltimeWarned(session().workload_id, true);
    const first = at('2026-11-29T21:09:00.000Z');
    expect(at('2026-11-29T21:09:20.000Z')).toBe(first);
    expect(at('2026-11-29T22:09:00.000Z')).not.toBe(first);
  });
});

describe('what happened', () => {
  it('an end that nobody wished is told with its true cause, what to do, and Start again', () => {
    shown(READY);
    const [notice] = shown(ENDED);
    expect(notice.kind).toBe('error');
    expect(notice.text).toContain('used more memory than its profile allows');
    expect(notice.text).toContain('Choose a profile with more memory.');
    expect(notice.actions.map(action => action.name)).toContain('start-again');
  });

  it('the end of a console, which no file would lead to again, has no Start again', () => {
    const kernels = session().kernels.map(kernel => ({ ...kernel, path: 'Console 1' }));
    shown({ ...READY, kernels });
    const [notice] = shown({ ...ENDED, kernels });
    expect(notice.actions.map(action => action.name)).toEqual(['log', 'show']);
  });

  it('an end from before this page was loaded is not told', () => {
    expect(shown(ENDED)).toEqual([]);
  });

  it("an end by a person's own hand is not told", () => {
    shown(READY);
    const reason = { code: 'USER_CANCELLED', sentence: 'Stopped.', remedy: null, detail: '', actor: '' };
    expect(shown({ ...ENDED, phase: 'CANCELLED', reason })).toEqual([]);
  });

  it('lost memory is told once for each loss', () => {
    shown(READY);
    const [first] = shown({ ...READY, memory_lost: true, recoveries: 1 });
    const [second] = shown({ ...READY, memory_lost: true, recoveries: 2 });
    expect(first.text).toContain('started afresh');
    expect(first.text).not.toContain('undefined');
    expect(second.key).not.toBe(first.key);
  });

  it('lost memory is told with what it was lost for', () => {
    shown(READY);
    const reason = { code: 'NODE_FAILED', sentence: 'The machine failed.', remedy: null, detail: '', actor: '' };
    shown({ state: 'reconnecting', sentence: 'The connection is interrupted.' });
    shown({ state: 'starting', reason, recoveries: 1 });
    shown({ state: 'starting', sentence: '1 of 4 conditions', recoveries: 1 });
    const [notice] = shown({ ...READY, memory_lost: true, recoveries: 1 }, { ...ALL, starting: false });
    expect(notice.text).toContain('started afresh, its variables are gone. The machine failed.');
  });

  it('is silent where a person chose so', () => {
    const none = { starting: false, ending: false, ended: false };
    expect(shown({}, none)).toEqual([]);
    expect(shown(WARNED, none)).toEqual([]);
    expect(shown(ENDED, none)).toEqual([]);
  });
});
